"""The pool controller on a real API: pools fill, refill, follow their template, and never delete a claimed sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

from sandpool.api.kinds import CONFIG_MAP, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.labels import LAUNCH_TYPE
from sandpool.api.names import generate_name
from sandpool.api.resource import Key, Object
from sandpool.api.warmpool import RECREATE, ROLLING_UPDATE
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import Caches
from sandpool.controllers.warmpool.controller import WarmPoolController
from sandpool.engine.events import EventRecorder
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ServiceUnavailable
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from sandpool.testing.world import NAMESPACE, World, owner_of
from tests.support.api_objects import owner_reference
from tests.support.claim_objects import warm_pool
from tests.support.held_events import hold_events
from tests.support.sandbox_objects import template


def image_of(box: Object) -> str:
    image: str = box["spec"]["podTemplate"]["spec"]["containers"][0]["image"]
    return image


def creations(world: World) -> list[Request]:
    return [each for each in world.writes() if each.method == "POST" and each.path.endswith("/sandboxes")]


async def test_pool_fills_and_reports_its_members(world: World) -> None:
    await world.template()
    await world.pool(5)

    async def complete() -> bool:
        pool = await world.client.get(SANDBOX_WARM_POOL, "pool", NAMESPACE)
        return bool((pool.get("status") or {}).get("readyReplicas") == 5)

    await until(complete)
    assert len(creations(world)) == 5, "never one too many, and nothing but the one POST each"
    said = [each for each in world.writes() if each.path.endswith("/sandboxwarmpools/pool/status")]
    assert len(said) <= 4, "many changes, few words"


async def test_pool_without_template_fills_when_the_template_is_created(world: World) -> None:
    await world.pool(2, filled=False)
    await world.template()

    await world.filled(2)


async def test_deleted_member_is_replaced_once(world: World) -> None:
    await world.template()
    await world.pool(3)
    first = await world.members()

    await world.client.delete(SANDBOX, first[0]["metadata"]["name"], NAMESPACE)
    await world.eventually(lambda: len(creations(world)) == 4)
    await world.filled(3)
    assert len(creations(world)) == 4


async def test_scaling_down_deletes_surplus_members(world: World) -> None:
    await world.template()
    await world.pool(4)

    body = MergePatch({"spec": {"replicas": 1}})
    await world.client.patch(SANDBOX_WARM_POOL, "pool", body, NAMESPACE)
    await world.filled(1)


async def test_recreate_replaces_all_members(world: World) -> None:
    await world.template()
    await world.pool(3, strategy=RECREATE)

    await world.change_template("example.com/image:2")

    async def replaced() -> bool:
        return {image_of(box) for box in await world.members()} == {"example.com/image:2"}

    await until(replaced)
    await world.filled(3)


async def test_rolling_update_keeps_enough_members_ready(world: World) -> None:
    await world.template()
    await world.pool(4, strategy=ROLLING_UPDATE)
    pools = world.controllers.caches
    least = 4

    def count(*_: object) -> None:
        nonlocal least
        ready = [box for box in pools.pool_sandboxes(NAMESPACE, "pool") if box.ready and not box.deleting]
        least = min(least, len(ready))

    pools.sandboxes.subscribe(count)
    await world.change_template("example.com/image:2")

    async def replaced() -> bool:
        return {image_of(box) for box in await world.filled(4)} == {"example.com/image:2"}

    await until(replaced)
    assert least >= 3, "a quarter may be missing, and no more"


async def test_lost_response_creates_no_second_member(world: World) -> None:
    await world.template()
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        if request.method == "POST" and request.path.endswith("/sandboxes") and len(lost) < 2:
            lost.append(request)
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await world.pool(3)

    assert len(creations(world)) == 3
    names = [request.body["metadata"]["name"] for request in lost]
    asked = [each.path.rsplit("/", 1)[-1] for each in world.wire.requests if each.method == "GET"]
    assert [name for name in asked if name in names] == names, "what is not known is asked for"


async def test_generated_name_of_an_existing_sandbox_is_not_used(world: World) -> None:
    taken = generate_name("pool-", Random(3))
    await world.sandbox(taken)
    await world.eventually(lambda: Key(NAMESPACE, taken) in world.controllers.caches.sandboxes)
    world.controllers.warm_pools.member_writer.rng = Random(3)
    await world.template()
    await world.pool(1)
    assert len(creations(world)) == 1


async def test_creation_executed_late_does_not_exceed_the_pool_size(world: World) -> None:
    """The answer did not come in time, the API was asked and had no such member, and only then it was made."""
    await world.template()
    original = world.wire.transport.request
    late: list[Request] = []

    async def dawdle(request: Request) -> object:
        is_creation = request.method == "POST" and request.path.endswith("/sandboxes")
        if is_creation and not late:
            late.append(request)
            raise TimeoutError("no answer in time")
        if is_creation and request is not late[0]:
            await original(late[0])
        return await original(request)

    world.wire.transport.request = dawdle  # type: ignore[method-assign]
    await world.pool(1)
    await world.controllers.warm_pools.controller.queue.settled()

    (member,) = await world.members()
    assert member["metadata"]["name"] == late[0].body["metadata"]["name"]
    assert [each.body["metadata"]["name"] for each in creations(world)] == [member["metadata"]["name"]] * 2
    assert not [each for each in world.writes() if each.method == "DELETE"]


async def test_member_claimed_before_the_delete_is_not_deleted(world: World) -> None:
    """R12: the claim is written between the plan of the pool and its delete."""
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    name = member["metadata"]["name"]
    other = await world.client.create(CONFIG_MAP, new(CONFIG_MAP, "other"), NAMESPACE)
    refused: list[Request] = []

    async def steal() -> None:
        body = {"metadata": {"ownerReferences": [owner_reference(other, controller=True)]}}
        await world.client.patch(SANDBOX, name, MergePatch(body), NAMESPACE)

    original = world.wire.transport.request

    async def slowly(request: Request) -> object:
        if request.method == "DELETE" and request.path.endswith(name) and not refused:
            refused.append(request)
            await steal()
        return await original(request)

    world.wire.transport.request = slowly  # type: ignore[method-assign]
    body = MergePatch({"spec": {"replicas": 0}})
    await world.client.patch(SANDBOX_WARM_POOL, "pool", body, NAMESPACE)
    await world.eventually(lambda: refused)
    await world.wire.quiet()

    box = await world.client.get(SANDBOX, name, NAMESPACE)
    assert owner_of(box) == ("ConfigMap", "other")
    assert "deletionTimestamp" not in box["metadata"]


async def test_member_claimed_before_the_patch_is_not_labelled(world: World) -> None:
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    name = member["metadata"]["name"]
    other = await world.client.create(CONFIG_MAP, new(CONFIG_MAP, "other"), NAMESPACE)
    original = world.wire.transport.request
    refused: list[Request] = []

    async def steal(request: Request) -> object:
        if request.method == "PATCH" and request.path.endswith(f"/sandboxes/{name}") and not refused:
            refused.append(request)
            body = {"metadata": {"ownerReferences": [owner_reference(other, controller=True)]}}
            await world.client.patch(SANDBOX, name, MergePatch(body), NAMESPACE)
        return await original(request)

    world.wire.transport.request = steal  # type: ignore[method-assign]
    await world.client.patch(SANDBOX, name, MergePatch({"metadata": {"labels": {LAUNCH_TYPE: None}}}), NAMESPACE)
    await world.eventually(lambda: refused)
    await world.filled(1)

    assert refused[0].body["metadata"]["labels"] == {LAUNCH_TYPE: "warm"}
    box = await world.get(SANDBOX, name)
    assert owner_of(box) == ("ConfigMap", "other")
    assert LAUNCH_TYPE not in box["metadata"]["labels"]


async def test_members_collected_with_their_pool_are_not_replaced(world: World) -> None:
    """The deletion events of members arrive before that of the pool they were collected with."""
    await world.template()
    await world.pool(3)
    release = hold_events(world, SANDBOX_WARM_POOL)

    await world.client.delete(SANDBOX_WARM_POOL, "pool", NAMESPACE)
    await world.eventually(lambda: not world.controllers.caches.pool_sandboxes(NAMESPACE, "pool"))
    await world.controllers.warm_pools.controller.queue.settled()

    assert len(creations(world)) == 3
    assert Key(NAMESPACE, "pool") not in world.controllers.caches.pools, "the API has been asked"
    assert not world.controllers.warm_pools._watches.lost_members
    release()


async def test_member_lost_during_the_owner_check_causes_another_check(world: World) -> None:
    """The first member is deleted alone. The pool is deleted with the second one after the check has read it."""
    await world.template()
    await world.pool(2)
    first, second = [Key(NAMESPACE, box["metadata"]["name"]) for box in await world.members()]
    sandboxes = world.controllers.caches.sandboxes
    release = hold_events(world, SANDBOX_WARM_POOL)
    original = world.wire.transport.request
    asked: list[Request] = []

    async def end_meanwhile(request: Request) -> object:
        if request.method != "GET" or not request.path.endswith("/sandboxwarmpools/pool"):
            return await original(request)
        asked.append(request)
        answer = await original(request)
        if len(asked) == 1:
            await world.client.delete(SANDBOX_WARM_POOL, "pool", NAMESPACE)
            await world.eventually(lambda: second not in sandboxes)
        return answer

    world.wire.transport.request = end_meanwhile  # type: ignore[method-assign]
    await world.client.delete(SANDBOX, first.name, NAMESPACE)
    await world.eventually(lambda: second not in sandboxes)
    await world.controllers.warm_pools.controller.queue.settled()

    assert len(asked) == 2
    assert len(creations(world)) == 2
    release()


class Deaf:
    """A transport to an API that takes nothing."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def request(self, request: Request) -> Any:
        self.requests.append(request)
        raise ServiceUnavailable("the disk is full")

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def test_r38_failing_status_write_is_retried_with_growing_backoff() -> None:
    clock, api, caches = ManualClock(), Deaf(), Caches()
    client = Client(api)
    caches.templates.observe(template())
    recorder = EventRecorder(client, clock, "test")
    pools = WarmPoolController(Dependencies.of(client, caches, recorder, clock, Random(0)))
    empty = warm_pool()
    empty["spec"]["replicas"] = 0
    caches.pools.observe(empty)
    task = asyncio.create_task(pools.controller.run())
    await clock.advance(900)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert 10 <= len(api.requests) <= 20, "from milliseconds to minutes, each time twice as long"
