"""Leases of the claim of a key, which several programs use at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import MAX_CLAIMS
from sandpool.api.resource import SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.lease import HOLDER_PREFIX
from sandpool.service.errors import NameTaken
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support.namespace_limits import limit


@asynccontextmanager
async def program(service: Service, lease: float = 60.0) -> AsyncIterator[AsyncClient]:
    """A client of another program."""
    client = AsyncClient(service=service, lease=lease)
    yield client
    await client.leases.close()
    await client._watch.close()


@pytest_asyncio.fixture
async def programs(world: World, service: Service) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Two programs, and a pool for them."""
    await world.template(name="python")
    await world.pool(replicas=3, name="python", template="python")
    async with AsyncExitStack() as stack:
        yield (await stack.enter_async_context(program(service)), await stack.enter_async_context(program(service)))


async def claim_of_key(world: World) -> SharedObject:
    (claim,) = await world.all(SANDBOX_CLAIM)
    return claim


async def end_of_claim(world: World) -> datetime:
    return datetime.fromisoformat((await claim_of_key(world))["spec"]["lifecycle"]["shutdownTime"])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_last_program_that_releases_a_shared_sandbox_deletes_it(
    world: World, programs: tuple[AsyncClient, AsyncClient], order: tuple[int, int]
) -> None:
    shared = [await each.sandbox(key="job") for each in programs]
    first, last = (shared[index] for index in order)
    await first.release()
    await first.release()  # without effect
    assert (await claim_of_key(world))["metadata"]["name"] == last.name
    assert (await last.run("echo here")).stdout == "here\n"
    await last.release()
    assert await world.all(SANDBOX_CLAIM) == []


async def test_one_program_may_use_the_sandbox_of_a_key_twice(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    client, _ = programs
    one, two = await client.sandbox(key="job"), await client.sandbox(key="job")
    await one.release()
    await one.release()  # without effect
    assert two.name in client.leases
    assert (await two.run("echo here")).stdout == "here\n"
    await two.release()
    assert two.name not in client.leases
    assert await world.all(SANDBOX_CLAIM) == []


async def test_program_that_died_does_not_keep_a_shared_sandbox(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    dead, alive = programs
    await dead.sandbox(key="job")
    used = await alive.sandbox(key="job")
    await dead.leases.close()  # as if the process were gone
    alive.leases.clock = lambda: datetime.now(UTC) + timedelta(minutes=2)
    await used.release()
    assert await world.all(SANDBOX_CLAIM) == []


async def test_shared_sandbox_ends_with_the_longest_lease(
    world: World, service: Service, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    one, _ = programs
    await one.sandbox(key="job")
    end = await end_of_claim(world)
    async with program(service, lease=5.0) as short:
        sandbox = await short.sandbox(key="job")
        await short.leases.renew()
        assert await end_of_claim(world) == end
        await sandbox.extend(3600)
        assert await end_of_claim(world) > end + timedelta(minutes=50)
        await one.leases.renew()  # never shortens what another program needs
        assert await end_of_claim(world) > end + timedelta(minutes=50)
        await sandbox.release()
        assert await end_of_claim(world) < end + timedelta(minutes=50)


async def test_holder_does_not_take_back_what_another_program_has_extended(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    holder, other = programs
    sandbox = await holder.sandbox()
    connected = await other.connect(sandbox.name)
    await connected.extend(3600)
    await holder.leases.renew()
    assert await end_of_claim(world) > datetime.now(UTC) + timedelta(minutes=50)
    await sandbox.release()
    assert await world.all(SANDBOX_CLAIM) == []


async def test_kept_sandbox_that_is_found_by_its_key_gets_no_lease_and_stays(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    owner, other = programs
    async with owner.sandbox(key="job", keep=True) as kept:
        pass
    async with other.sandbox(key="job") as found:
        assert found.name == kept.name
        assert found.name not in other.leases
        await other.leases.renew()
    assert "lifecycle" not in (await claim_of_key(world))["spec"]
    await (await owner.connect(kept.name)).release()
    assert await world.all(SANDBOX_CLAIM) == []


async def test_keeping_the_sandbox_of_a_key_takes_its_lease_away(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    holder, owner = programs
    held = await holder.sandbox(key="job")
    async with owner.sandbox(key="job", keep=True) as kept:
        assert kept.name == held.name
    assert "shutdownTime" not in (await claim_of_key(world))["spec"].get("lifecycle", {})
    await holder.leases.renew()
    assert "shutdownTime" not in (await claim_of_key(world))["spec"].get("lifecycle", {})
    assert held.name not in holder.leases
    await held.release()
    assert (await claim_of_key(world))["metadata"]["name"] == kept.name


async def test_same_key_with_another_pool_or_other_variables_is_refused(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    one, other = programs
    await one.template("tasks", image="image:1", late_binding=True)
    await one.pool("tasks", template="tasks", size=1)
    await world.filled(4)
    held = await one.sandbox("tasks", key="job", env={"A": "secret", "B": "2"})
    for env in ({"A": "3", "B": "2"}, {"B": "2"}, None):
        with pytest.raises(NameTaken, match="other values of A") as caught:
            await other.sandbox("tasks", key="job", env=env)
        assert "secret" not in str(caught.value)
    with pytest.raises(NameTaken, match='with the pool "tasks"'):
        await other.sandbox("python", name=held.name, key="job")
    assert held.name not in other.leases
    (claim,) = await world.all(SANDBOX_CLAIM)
    assert [each for each in claim["metadata"]["annotations"] if each.startswith(HOLDER_PREFIX)] == [
        HOLDER_PREFIX + one.id
    ]
    same = await other.sandbox("tasks", key="job", env={"B": "2", "A": "secret"})
    assert same.name == held.name


class Interrupted:
    """A client of the API that does something before its first deletion."""

    def __init__(self, inner: Client) -> None:
        self.inner = inner
        self.before: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def delete(self, *arguments: Any, **options: Any) -> Any:
        while self.before:
            await self.before.pop()()
        return await self.inner.delete(*arguments, **options)


@pytest.mark.parametrize("joining", [0, 1])
async def test_program_that_joins_while_the_last_one_leaves_keeps_the_sandbox(
    world: World, programs: tuple[AsyncClient, AsyncClient], joining: int
) -> None:
    leaving, joined = programs[0], programs[joining]
    first = await leaving.sandbox(key="job")
    leaving.leases.client = interrupted = Interrupted(leaving.leases.client)  # type: ignore[assignment]
    found = []

    async def join() -> None:
        found.append(await joined.sandbox(key="job"))

    interrupted.before.append(join)
    await first.release()
    assert found[0].name == first.name
    assert HOLDER_PREFIX + joined.id in (await claim_of_key(world))["metadata"]["annotations"]
    await found[0].release()
    assert await world.all(SANDBOX_CLAIM) == []


async def test_claim_that_is_deleted_while_it_is_joined_is_made_again(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    one, other = programs
    await one.sandbox(key="job")
    before = await claim_of_key(world)
    join = other.leases.join

    async def join_late(found: SharedObject, shared: bool) -> SharedObject:
        other.leases.join = join  # type: ignore[method-assign]
        await world.client.delete(SANDBOX_CLAIM, found["metadata"]["name"], world.namespace)
        return await join(found, shared)

    other.leases.join = join_late  # type: ignore[method-assign]
    made = await other.sandbox(key="job")
    after = await claim_of_key(world)
    assert after["metadata"]["name"] == made.name
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_program_that_gives_up_waiting_leaves_the_claim_to_the_other(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    one, other = programs
    await limit(world, MAX_CLAIMS, "1")
    first = await one.sandbox()
    asking = asyncio.ensure_future(one._acquire(one.sandbox(key="job")))
    await world.eventually(lambda: len(one.leases._held) == 2)
    also_asking = asyncio.ensure_future(other._acquire(other.sandbox(key="job")))
    await world.eventually(lambda: len(other.leases._held) == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(await world.all(SANDBOX_CLAIM)) == 2
    await first.release()
    await (await also_asking).release()
    assert await world.all(SANDBOX_CLAIM) == []


async def test_malformed_annotations_of_a_claim_are_ignored(
    world: World, programs: tuple[AsyncClient, AsyncClient]
) -> None:
    one, _ = programs
    sandbox = await one.sandbox(key="job")
    annotations = {"metadata": {"annotations": {HOLDER_PREFIX + "else": "tomorrow", HOLDER_PREFIX + "b": "2999-01-01"}}}
    await world.client.patch(SANDBOX_CLAIM, sandbox.name, MergePatch(annotations), world.namespace)
    await sandbox.release()
    assert await world.all(SANDBOX_CLAIM) == []
