from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SECRET
from sandpool.api.labels import LAUNCH_TYPE
from sandpool.api.resource import SharedObject
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import WatchEvent
from sandpool.service.claims import Claim, Claims, random_name
from sandpool.service.errors import ClaimFailed, NameTaken, NotReadyInTime, UnknownName
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support.held_events import hold_events


async def names(world: World) -> list[str]:
    listed = await world.client.list(SANDBOX_CLAIM, world.namespace)
    return [each["metadata"]["name"] for each in listed["items"]]


async def filled_pool(world: World, service: Service, name: str = "python", replicas: int = 2) -> None:
    await world.template(name=name)
    await service.pools.create(name, name, replicas)
    await service.pools.wait_ready(name, replicas, 30.0)


async def test_a_claim_is_ready_with_a_warm_sandbox(world: World, service: Service) -> None:
    await filled_pool(world, service)
    claim = await service.claims.create("python", name="mine")
    assert (claim.name, claim.pool, claim.ready) == ("mine", "python", True)
    sandbox = await service.sandboxes.get(claim.sandbox)
    assert sandbox.launch == sandbox.object["metadata"]["labels"][LAUNCH_TYPE] == "warm"
    assert sandbox.claim == "mine"
    assert [each.name for each in await service.claims.list()] == ["mine"]
    assert await service.claims.wait_ready("mine") == (await service.claims.list())[0]


async def test_a_claim_is_found_by_its_name(world: World, service: Service) -> None:
    await filled_pool(world, service)
    made = await service.claims.create("python", name="mine")
    found = await service.claims.find("mine")
    assert found is not None and (found.uid, found.sandbox) == (made.uid, made.sandbox)
    assert await service.claims.find("yours") is None


async def test_a_claim_without_a_name_gets_one(world: World, service: Service) -> None:
    await filled_pool(world, service)
    one, two = await asyncio.gather(service.claims.create("python"), service.claims.create("python", prefix="run"))
    assert one.name.startswith("python-")
    assert two.name.startswith("run-")
    assert one.sandbox != two.sandbox


async def test_releasing_a_claim_deletes_its_sandbox(world: World, service: Service) -> None:
    await filled_pool(world, service)
    claim = await service.claims.create("python")
    await service.claims.release(claim.name)
    assert await names(world) == []

    async def gone() -> bool:
        try:
            await world.client.get(SANDBOX, claim.sandbox, world.namespace)
        except NotFound:
            return True
        return False

    await world.until(gone)


async def test_releasing_a_claim_that_does_not_exist_names_close_matches(world: World, service: Service) -> None:
    await filled_pool(world, service)
    await service.claims.create("python", name="analysis")
    with pytest.raises(UnknownName, match=r'there is no claim "analisis" in .*\nDid you mean analysis?'):
        await service.claims.release("analisis")
    with pytest.raises(UnknownName, match="List them with: sandpool ls"):
        await service.claims.release("something-else")


async def test_a_name_that_is_taken_is_an_error_and_the_other_claim_stays(world: World, service: Service) -> None:
    await filled_pool(world, service)
    first = await service.claims.create("python", name="mine")
    with pytest.raises(NameTaken, match=r'claim "mine" already exists'):
        await service.claims.create("python", name="mine")
    assert (await service.claims.wait_ready("mine")).uid == first.uid


def with_late_answers(service: Service, monkeypatch: pytest.MonkeyPatch, lost: Exception | None = None) -> Claims:
    """Claims whose watch has shown a claim before the API answers the creation, or before that answer is lost."""
    shown = asyncio.Event()
    create = service.client.create

    async def events(name: str, version: str | None) -> AsyncIterator[WatchEvent]:
        try:
            async for event in service.client.watch(
                SANDBOX_CLAIM, service.namespace, field_selector=f"metadata.name={name}", resource_version=version
            ):
                yield event
        finally:
            shown.set()

    async def late(*arguments: Any) -> SharedObject:
        try:
            return await create(*arguments)
        finally:
            await shown.wait()
            for _ in range(10):  # until the state of the watch has reached its reader
                await asyncio.sleep(0)
            if lost is not None:
                raise lost

    monkeypatch.setattr(service.client, "create", late)
    return Claims(service.client, service.namespace, events)


async def test_a_claim_that_has_the_name_is_not_taken_for_the_new_one(
    world: World, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch shows the other claim, which is ready, before the API answers that the name is taken."""
    await filled_pool(world, service)
    await service.claims.create("python", name="mine")
    with pytest.raises(NameTaken):
        await with_late_answers(service, monkeypatch).create("python", name="mine")
    assert await names(world) == ["mine"]


async def test_a_claim_that_is_ready_is_returned_although_the_answer_is_lost(
    world: World, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled_pool(world, service)
    claims = with_late_answers(service, monkeypatch, ConnectionError("the answer was lost"))
    assert (await claims.create("python", name="mine")).ready


async def test_a_pool_that_does_not_exist_is_an_error_and_leaves_no_claim(world: World, service: Service) -> None:
    await filled_pool(world, service)
    with pytest.raises(UnknownName, match=r'there is no pool "pyton" .*\nDid you mean python?'):
        await service.claims.create("pyton")
    assert await names(world) == []


@pytest.mark.parametrize(
    ("policy", "variable", "reason", "needed"),
    [
        ({}, "NEW", "injection is not allowed by the template policy", "Allowed or Overrides"),
        ({"envVarsInjectionPolicy": "Allowed"}, "KNOWN", "override is not allowed by the template", "Overrides"),
    ],
    ids=["disallowed", "a clash"],
)
async def test_a_refused_claim_fails_at_once_and_names_the_field_that_allows_it(
    world: World, service: Service, policy: dict[str, str], variable: str, reason: str, needed: str
) -> None:
    container = {"name": "main", "image": "example.com/image:1", "env": [{"name": "KNOWN", "value": "1"}]}
    await world.create(
        SANDBOX_TEMPLATE, "python", spec={"podTemplate": {"spec": {"containers": [container]}}, **policy}
    )
    await service.pools.create("python", "python", 1)
    with pytest.raises(ClaimFailed) as failed:
        await service.claims.create("python", name="mine", env={variable: "1"})
    assert reason in failed.value.message
    assert failed.value.advice == (f'Set envVarsInjectionPolicy to {needed} in template "python", or change the claim.')
    assert await names(world) == []


async def test_a_claim_that_is_not_ready_in_time_is_deleted(world: World, service: Service) -> None:
    await world.template()
    await service.pools.create("python", "python", 0)
    release = hold_events(world, SANDBOX_CLAIM)  # the controllers do not see it
    with pytest.raises(
        NotReadyInTime, match=r"was not ready within 0.2 s\nFind out more with: sandpool why pool python"
    ):
        await service.claims.create("python", name="slow", timeout=0.2)
    release()
    assert await names(world) == []


async def test_a_cancelled_creation_leaves_no_claim(world: World, service: Service) -> None:
    await world.template()
    await service.pools.create("python", "python", 0)
    release = hold_events(world, SANDBOX_CLAIM)
    creating = asyncio.create_task(service.claims.create("python", name="mine"))

    async def made() -> bool:
        return await names(world) == ["mine"]

    await world.until(made)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    release()
    assert await names(world) == []


async def test_a_claim_that_is_deleted_meanwhile_is_an_error(world: World, service: Service) -> None:
    await world.template()
    await service.pools.create("python", "python", 0)
    release = hold_events(world, SANDBOX_CLAIM)
    creating = asyncio.create_task(service.claims.create("python", name="mine"))

    async def made() -> bool:
        return await names(world) == ["mine"]

    await world.until(made)
    await service.claims.release("mine")
    with pytest.raises(ClaimFailed, match="was deleted while it was waited for"):
        await creating
    release()


async def two_of_one_name(world: World, service: Service) -> tuple[Claim, Claim]:
    """A claim that was released, and the one that has its name now."""
    await filled_pool(world, service)
    first = await service.claims.create("python", name="mine")
    assert await service.claims.delete(first) is not None
    return first, await service.claims.create("python", name="mine")


async def test_deletion_of_a_claim_leaves_another_one_of_its_name(world: World, service: Service) -> None:
    first, second = await two_of_one_name(world, service)
    assert await service.claims.delete(first) is None
    assert [each.uid for each in await service.claims.list()] == [second.uid]
    assert await service.claims.delete(second) is not None
    assert await service.claims.delete(second) is None


async def test_end_is_that_of_one_claim_and_not_of_another_one_of_its_name(world: World, service: Service) -> None:
    first, second = await two_of_one_name(world, service)
    changed = await service.claims.set_end(second, "2100-01-01T00:00:00Z")
    lifecycle = changed.object["spec"]["lifecycle"]
    assert lifecycle == {"shutdownTime": "2100-01-01T00:00:00Z", "shutdownPolicy": "Delete"}
    with pytest.raises(UnknownName, match='there is no claim "mine"'):
        await service.claims.set_end(first, "2101-01-01T00:00:00Z")
    await service.claims.delete(second)
    with pytest.raises(UnknownName):
        await service.claims.set_end(second, "2101-01-01T00:00:00Z")


async def test_secret_is_read_only_for_the_claim_that_it_was_kept_for(world: World, service: Service) -> None:
    first, second = await two_of_one_name(world, service)
    await service.claims.keep_secret(second, "-values", {"a": "größe\0", "b": ""})
    assert await service.claims.read_secret(second, "-values") == {"a": "größe\0", "b": ""}
    (owner,) = (await world.get(SECRET, "mine-values"))["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("SandboxClaim", second.uid)
    for claim, suffix in ((first, "-values"), (second, "-none")):
        with pytest.raises(UnknownName, match="there is no secret"):
            await service.claims.read_secret(claim, suffix)


def test_random_names_are_valid_and_differ() -> None:
    long = random_name("x" * 100)
    assert len(long) == 63
    assert random_name("run-")[:4] == "run-"
    assert "--" not in random_name("run-")
    assert len({random_name("a") for _ in range(50)}) == 50
