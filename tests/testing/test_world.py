"""A world on each of its backends."""

from __future__ import annotations

import asyncio

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX
from sandpool.kube.transport import WatchEvent
from sandpool.testing.backend import Backend
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.world import World
from tests.support.backends import new_namespace


async def test_audit_log_separates_writers(world: World) -> None:
    await world.sandbox()
    assert [str(each) for each in world.audited_requests() if each.writes] == ["create pods", "patch sandboxes/status"]
    assert [each.code for each in world.audited_requests("users") if each.writes] == [201]
    by_node = [str(each) for each in world.audited_requests("node") if each.writes]
    assert by_node == ["create pods/binding", *["patch pods/status"] * 5]
    assert {each.namespace for each in world.audited_requests(None)} == {world.namespace}


async def test_worlds_of_one_backend_are_separate(world: World, backend: Backend) -> None:
    other = World(backend, await new_namespace(backend))
    await other.start()
    await world.sandbox()
    assert is_ready(await world.get())
    assert await other.all(POD) == []
    assert len(other.controllers.caches.pods) == 0
    await other.stop()


async def test_time_passes_only_with_wait(world: World) -> None:
    begin = world.clock.now()
    world.node.termination = 3600
    await world.sandbox()
    await world.delete(POD, "box")
    await world.wait(3599)
    assert await world.exists(POD)
    before = (await world.get(POD))["metadata"]["uid"]
    await world.wait(1)
    assert (await world.get(POD))["metadata"]["uid"] != before
    assert (world.clock.now() - begin).total_seconds() == 3600


async def test_ended_watch_is_reopened_without_time_passing(world: World) -> None:
    """An API under load ends slow watches."""
    begin = world.clock.now()
    reflector = next(each for each in world.controllers.informers.reflectors if each.type == POD)
    take = reflector._take_event

    def broken_off(event: WatchEvent) -> None:
        reflector._take_event = take  # type: ignore[method-assign]
        raise ConnectionError("the watch broke off")

    reflector._take_event = broken_off  # type: ignore[method-assign]
    await world.sandbox()
    assert is_ready(await world.get())
    assert reflector.failures == 1
    assert world.clock.now() == begin


async def test_hanging_controllers_are_stopped(world: World) -> None:
    world.wire.fault = lambda request: Fault.HOLD if request.path.endswith("/pods") else None
    await world.client.create(SANDBOX, _box(), world.namespace)
    await world.eventually(lambda: world.wire.requests[-1].path.endswith("/pods"))
    async with asyncio.timeout(20):
        world.wire.heal()
        await world.restart()
    await world.settle()
    assert is_ready(await world.get())


def _box() -> dict[str, object]:
    containers = [{"name": "main", "image": "example.com/image:1"}]
    return {
        "apiVersion": SANDBOX.api_version,
        "kind": "Sandbox",
        "metadata": {"name": "box"},
        "spec": {"podTemplate": {"spec": {"containers": containers}}},
    }
