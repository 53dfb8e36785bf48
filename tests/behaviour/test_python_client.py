"""The Python client on every API: claims, its one watch, leases, keys, and what it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import datetime, timedelta
from typing import TypeVar

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import MAX_CLAIMS
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.sandbox import AsyncSandbox
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient, PlayedSession
from tests.support.namespace_limits import limit

T = TypeVar("T")


async def done(world: World, work: Awaitable[T]) -> T:
    """The result of the client's work, while the time of the world goes on."""

    async def wait() -> T:
        return await work

    task = asyncio.create_task(wait())
    await world.eventually(task.done)
    return task.result()


async def play(session: PlayedSession) -> int:
    session.write(b"hello\n")
    return 0


def client_of(world: World, pods: FakePodClient) -> AsyncClient:
    return AsyncClient(service=Service(world.client, pods, world.namespace))


async def end(client: AsyncClient) -> None:
    """End what the client does by itself. Its connections belong to the world."""
    await client.leases.close()
    await client._watch.close()


async def test_client_claims_runs_renews_and_releases(world: World) -> None:
    await world.template()
    await world.pool(3)
    pods = FakePodClient(play)
    client = client_of(world, pods)
    held = await done(world, asyncio.gather(*(client.sandbox("pool") for _ in range(3))))
    assert {sandbox.launch for sandbox in held} == {"warm"}
    assert (await held[0].run(["true"])).stdout == "hello\n"
    assert pods.asked == [(world.namespace, held[0]._sandbox.pod)]

    before = (await world.get(SANDBOX_CLAIM, held[0].name))["spec"]["lifecycle"]
    assert before["shutdownPolicy"] == "Delete"
    clock = client.leases.clock
    client.leases.clock = lambda: clock() + timedelta(seconds=40)
    await client.leases.renew()
    after = (await world.get(SANDBOX_CLAIM, held[0].name))["spec"]["lifecycle"]
    first, second = (datetime.fromisoformat(each["shutdownTime"]) for each in (before, after))
    assert second - first > timedelta(seconds=30)

    await done(world, asyncio.gather(*(sandbox.release() for sandbox in held)))
    assert await world.all(SANDBOX_CLAIM) == []
    await end(client)
    await pods.close()


async def test_claims_wait_for_a_sandbox_longer_than_their_lease(world: World) -> None:
    await world.template()
    await world.pool(2)
    await limit(world, MAX_CLAIMS, "1")
    pods = FakePodClient(play)
    client = client_of(world, pods)
    client.leases.clock = world.clock.now
    first = await done(world, client.sandbox("pool"))

    async def second() -> AsyncSandbox:
        return await client.sandbox("pool", name="second", timeout=600.0)

    asking = asyncio.create_task(second())
    mapping = asyncio.create_task(client.map("input", [1, 2], pool="pool"))
    await world.eventually(lambda: len(client.leases._held) == 4)
    for _ in range(6):
        await world.wait(client.leases.length / 3)
        await client.leases.renew()
    assert len(await world.all(SANDBOX_CLAIM)) == 4
    assert not asking.done()
    assert not mapping.done()
    mapping.cancel()
    await done(world, asyncio.gather(mapping, return_exceptions=True))
    await done(world, first.release())
    await done(world, (await done(world, asking)).release())
    assert await world.all(SANDBOX_CLAIM) == []
    await end(client)
    await pods.close()


async def test_same_key_finds_the_same_sandbox_from_two_programs(world: World) -> None:
    await world.template()
    await world.pool(2)
    clients = [client_of(world, FakePodClient(play)) for _ in range(2)]
    first, second = [await done(world, client.sandbox("pool", key="job")) for client in clients]
    assert first.name == second.name
    assert len(await world.all(SANDBOX_CLAIM)) == 1
    await done(world, second.release())
    assert (await world.get(SANDBOX_CLAIM, first.name))["metadata"]["name"] == first.name
    assert (await first.run(["true"])).stdout == "hello\n"
    await done(world, first.release())
    assert await world.all(SANDBOX_CLAIM) == []
    for client in clients:
        await end(client)


async def test_kept_sandbox_of_a_key_outlives_the_programs_that_find_it(world: World) -> None:
    await world.template()
    await world.pool(1)
    owner, other = [client_of(world, FakePodClient(play)) for _ in range(2)]
    kept = await done(world, owner.sandbox("pool", key="job", keep=True))
    found = await done(world, other.sandbox("pool", key="job"))
    assert found.name == kept.name
    await other.leases.renew()
    await done(world, found.release())
    assert "lifecycle" not in (await world.get(SANDBOX_CLAIM, kept.name))["spec"]
    for client in (owner, other):
        await end(client)


async def test_program_that_died_releases_its_part_of_a_shared_sandbox(world: World) -> None:
    await world.template()
    await world.pool(1)
    clients = [client_of(world, FakePodClient(play)) for _ in range(2)]
    for client in clients:
        client.leases.clock = world.clock.now
        await done(world, client.sandbox("pool", key="job"))
    dead, alive = clients
    await end(dead)
    for _ in range(6):
        await world.wait(alive.leases.length / 3)
        await alive.leases.renew()
    (claim,) = await world.all(SANDBOX_CLAIM)
    await end(alive)
    await world.wait(2 * alive.leases.length)
    await world.gone(SANDBOX_CLAIM, claim["metadata"]["name"])
