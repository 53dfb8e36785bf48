"""Resource admission: a pod that does not fit is rejected, an admitted pod stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.api.kinds import NODE
from sandpool.api.quantity import parse
from sandpool.api.resource import Object
from sandpool.node.registration import RegistrationOptions
from sandpool.testing.faulty_transport import no_fault

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig


def in_flight(**requests: str) -> dict[str, Any]:
    container = {"name": "main", "image": "example.com/image:1", "resources": {"requests": requests}}
    return {"containers": [container]}


async def allowed(rig: NodeRig, pods: int) -> None:
    """Replace the agent by one that allows this number of pods."""
    rig.settings = replace(rig.settings, registration=RegistrationOptions("node-1", pods=pods))
    await rig.restart()


async def phase(rig: NodeRig, name: str) -> tuple[str, str]:
    status: Object = await rig.status(name)
    return status["phase"], status.get("reason") or ""


@pytest.mark.parametrize(
    ("name", "amount", "unit"),
    [("cpu", "1000", 10**6), ("memory", "1000Ti", 10**9), ("ephemeral-storage", "1Ei", 10**9)],
)
async def test_pod_that_does_not_fit_fails(rig: NodeRig, name: str, amount: str, unit: int) -> None:
    await rig.create("small", spec=in_flight(cpu="100m", **{"memory": "1Mi", "ephemeral-storage": "1Mi"}))
    used = {"cpu": 100}.get(name, 1 << 20)
    await rig.create(spec=in_flight(**{name: amount}))
    status = await rig.status()
    capacity = parse((await rig.client.get(NODE, "node-1"))["status"]["allocatable"][name]).billionths // unit
    assert (status["phase"], status["reason"]) == ("Failed", f"OutOf{name}")
    assert status["message"] == (
        f"Pod was rejected: Node didn't have enough resource: {name}, "
        f"requested: {parse(amount).billionths // unit}, used: {used}, capacity: {capacity}"
    )
    assert (status["reason"], status["message"]) in await rig.events()
    assert len(rig.starts()) == 1  # the small one
    writes = len(rig.status_writes())
    await rig.restart()
    assert (await rig.status(), len(rig.status_writes())) == (status, writes)


async def test_resources_are_freed_by_deleted_and_ended_pods(rig: NodeRig) -> None:
    await allowed(rig, 2)
    for name in ("one", "two", "three"):
        await rig.create(name, spec={"restartPolicy": "Never"})
    assert [await phase(rig, name) for name in ("one", "two", "three")] == [
        ("Running", ""),
        ("Running", ""),
        ("Failed", "OutOfpods"),
    ]
    await rig.delete("one", grace=0)
    await rig.create("four", spec={"restartPolicy": "Never"})
    assert await phase(rig, "four") == ("Running", "")
    await rig.create("five")
    assert await phase(rig, "five") == ("Failed", "OutOfpods")
    rig.runtime.started[-1].end(0)
    await rig.settle()
    assert await phase(rig, "four") == ("Succeeded", "")
    await rig.create("six")
    assert await phase(rig, "six") == ("Running", "")


async def test_running_pod_stays_on_a_smaller_node(rig: NodeRig) -> None:
    for name in ("one", "two"):
        await rig.create(name)
    await allowed(rig, 1)
    assert [await phase(rig, name) for name in ("one", "two")] == [("Running", "")] * 2
    await rig.create("three")
    assert await phase(rig, "three") == ("Failed", "OutOfpods")


async def test_admitted_pod_stays_without_a_reported_status(rig: NodeRig) -> None:
    rig.wire.fault = lambda request: ConnectionError("cut") if request.path.endswith("/status") else None
    await rig.create("one")
    assert len(rig.starts()) == 1
    rig.wire.fault = no_fault
    await rig.stop()
    await rig.create("a-new-one")  # in a list it comes before the other
    rig.settings = replace(rig.settings, registration=RegistrationOptions("node-1", pods=1))
    rig.agent = rig.new_agent()
    await rig.start()
    assert await phase(rig, "one") == ("Running", "")
    assert await phase(rig, "a-new-one") == ("Failed", "OutOfpods")
