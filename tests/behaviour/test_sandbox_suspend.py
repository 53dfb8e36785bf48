"""Suspending and resuming a sandbox."""

from __future__ import annotations

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.labels import ADOPTABLE, POD_NAME, SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.node.simulated import Fate
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World

SUSPENDED = ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")
SUSPENDING = ("False", "PodTerminating", "Pod is terminating. Sandbox is suspending")


async def suspend(world: World) -> None:
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})


async def resume(world: World) -> None:
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Running"}})


async def test_sandbox_is_suspended_in_two_steps(world: World) -> None:
    world.node.termination = 5
    await world.sandbox()
    world.written()
    await suspend(world)
    assert await world.conditions() == {
        "Suspended": SUSPENDING,
        "PodScheduled": ("True", "PodScheduled", ""),
        "Ready": ("False", "SandboxSuspended", "Sandbox is suspending"),
    }
    assert "deletionTimestamp" in (await world.get(POD))["metadata"]
    await world.wait(5)
    assert await world.conditions() == {
        "Suspended": SUSPENDED,
        "Ready": ("False", "SandboxSuspended", "Sandbox is suspended"),
    }
    assert not await world.exists(POD)
    assert world.written() == ["delete pods", "patch sandboxes/status", "patch sandboxes/status"]
    status = (await world.get())["status"]
    assert not {"podIPs", "nodeName"} & status.keys()
    assert status["selector"] == f"{SANDBOX_NAME_HASH}={name_hash('box')}"


async def test_suspended_sandbox_is_resumed(world: World) -> None:
    await world.sandbox(operatingMode="Suspended")
    assert (await world.conditions())["Suspended"] == SUSPENDED
    assert not await world.exists(POD)
    await resume(world)
    assert await world.conditions() == {
        "Suspended": ("False", "NotSuspended", "Sandbox is not suspended"),
        "PodScheduled": ("True", "PodScheduled", ""),
        "Ready": ("True", "DependenciesReady", "Pod is Ready"),
    }
    assert {each["observedGeneration"] for each in (await world.get())["status"]["conditions"]} == {2}


async def test_resumed_sandbox_waits_for_its_terminating_pod(world: World) -> None:
    world.node.termination = 5
    await world.sandbox()
    first = (await world.get(POD))["metadata"]["uid"]
    await suspend(world)
    await resume(world)
    await world.wait(4)
    assert (await world.get(POD))["metadata"]["uid"] == first
    await world.wait(2)
    assert (await world.get(POD))["metadata"]["uid"] != first
    assert is_ready(await world.get())


async def test_finished_pod_is_deleted_on_suspend_with_its_condition(world: World) -> None:
    """Finished describes an existing pod."""
    world.node.fate = lambda pod: Fate.FAILED
    world.node.termination = 5
    await world.sandbox()
    assert (await world.conditions())["Finished"] == ("True", "PodFailed", "Pod failed")
    await suspend(world)
    assert await world.conditions() == {
        "Suspended": SUSPENDED,
        "Ready": ("False", "SandboxSuspended", "Sandbox is suspended"),
    }


async def test_adopted_pod_of_another_name_is_suspended(world: World) -> None:
    await world.create(POD, "prepared", metadata={"labels": {ADOPTABLE: "true"}}, spec=pod_template()["spec"])
    await world.sandbox(metadata={"annotations": {POD_NAME: "prepared"}})
    await suspend(world)
    assert not await world.exists(POD, "prepared")
    assert (await world.conditions())["Suspended"] == SUSPENDED
    assert POD_NAME not in (await world.get())["metadata"].get("annotations", {})
    await resume(world)
    assert await world.exists(POD, "box")


async def test_suspension_survives_a_restart_of_the_controllers(world: World) -> None:
    world.node.termination = 60
    await world.sandbox()
    await suspend(world)
    await world.restart()
    assert (await world.conditions())["Suspended"] == SUSPENDING
    await world.wait(61)
    assert (await world.conditions())["Suspended"] == SUSPENDED
