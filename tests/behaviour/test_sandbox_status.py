"""When a sandbox is reconciled and when its status is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.controllers.options import ControllerOptions, SandboxOptions
from sandpool.kube.transport import MERGE_PATCH, Request
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World


async def test_steady_sandbox_is_not_written(world: World) -> None:
    """An unchanged status is not written, and own writes enqueue no sandbox."""
    await world.sandbox(service=True)
    world.written()
    passes = world.controllers.sandboxes.controller.reconciles
    await world.patch(SANDBOX, "box", {"metadata": {"annotations": {"look": "again"}}})
    await world.wait(3600)
    assert world.written() == []
    assert world.controllers.sandboxes.controller.reconciles == passes + 1


async def test_status_is_patched_without_a_resource_version(world: World) -> None:
    await world.sandbox()
    (status,) = [each for each in world.wire.requests if each.path.endswith("/sandboxes/box/status")]
    assert (status.method, status.content_type) == ("PATCH", MERGE_PATCH)
    assert status.body.keys() == {"status"}
    assert [each.code for each in world.audited_requests() if each.writes] == [201, 200]


async def test_failed_status_write_is_retried(world: World) -> None:
    faults: Iterator[Fault] = iter([Fault.CUT, Fault.LOSE, Fault.CUT])
    world.wire.fault = lambda request: next(faults, None) if request.path.endswith("/status") else None
    await world.sandbox()
    await world.wait(10)
    assert is_ready(await world.get())


async def test_sandbox_deleted_during_its_status_write_is_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NotFound is ignored and not retried."""
    send = world.wire.transport.request

    async def after_a_deletion(request: Request) -> Any:
        if request.path.endswith("/status"):
            await world.client.delete(SANDBOX, "box", world.namespace)
        return await send(request)

    monkeypatch.setattr(world.wire.transport, "request", after_a_deletion)
    await world.sandbox()
    await world.gone(POD)
    await world.wait(60)
    assert [each.code for each in world.audited_requests() if each.subresource == "status"] == [404]
    assert world.controllers.sandboxes.controller.failures == 0


async def test_new_generation_is_written_with_the_next_change_or_after_a_delay(world: World) -> None:
    """A change of the generation alone is not written at once."""
    await world.sandbox()
    world.written()
    await world.patch(SANDBOX, "box", {"spec": {"shutdownPolicy": "Delete"}})
    assert world.written() == []
    await world.wait(11)
    assert world.written() == ["patch sandboxes/status"]
    assert {each["observedGeneration"] for each in (await world.get())["status"]["conditions"]} == {2}


async def test_deferred_pod_metadata_are_written_together(world: World) -> None:
    await world.restart(settings=ControllerOptions(sandbox=SandboxOptions(write_behind=timedelta(seconds=0.5))))
    await world.sandbox()
    world.written()
    await _label(world, "a")
    await world.wait(0.4)
    await _label(world, "b")
    assert world.written() == []
    await world.wait(0.2)
    assert world.written() == ["patch pods"]
    assert (await world.get(POD))["metadata"]["labels"] == {"a": "1", "b": "1", SANDBOX_NAME_HASH: name_hash("box")}


async def test_adoption_is_not_deferred(world: World) -> None:
    """Writes that decide about ownership are never deferred."""
    await world.restart(settings=ControllerOptions(sandbox=SandboxOptions(write_behind=timedelta(seconds=0.5))))
    tracking = {SANDBOX_NAME_HASH: name_hash("box")}
    await world.create(POD, "box", metadata={"labels": tracking}, spec=pod_template()["spec"])
    await world.sandbox()
    assert world.written()[0] == "patch pods"
    assert is_ready(await world.get())


async def test_successor_controllers_write_nothing(world: World) -> None:
    """They reconcile every sandbox and write none that is up to date."""
    await world.template()
    await world.pool(0)
    await world.sandbox(service=True)
    await world.sandbox("asleep", operatingMode="Suspended")
    await world.claim("mine")
    await world.served(1)
    await world.wait(11)
    world.written()
    await world.restart()
    await world.wait(60)
    assert world.written() == []
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))


async def _label(world: World, key: str) -> None:
    await world.patch(SANDBOX, "box", {"spec": {"podTemplate": {"metadata": {"labels": {key: "1"}}}}})
