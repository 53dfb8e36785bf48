"""The simulated node: its reports, their order and their times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import POD
from sandpool.api.resource import Key, SharedObject
from sandpool.api.views.pod import SUCCEEDED
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound, ServiceUnavailable
from sandpool.kube.transport import Request
from sandpool.node.simulated import NO_NODE, Fate, SimulatedNode, StartupStage
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import Fault, FaultyTransport
from sandpool.testing.objects import pod
from sandpool.testing.quiescence import settle
from tests.support.manual_time import pass_time
from tests.support.simulated_nodes import reconsider


class Rig:
    """A simulated node on an API server of its own, with a manual clock."""

    running: asyncio.Task[None]

    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.client = server.client()
        self.clock = clock
        self.wire = FaultyTransport(server.client(name="node").transport)
        self.node = SimulatedNode(Client(self.wire), clock, name="node-1")

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def settle(self) -> None:
        await settle(self.clock, self.wire)

    async def passes(self, seconds: float) -> None:
        await pass_time(self.clock, seconds, self.wire)

    async def create(self, name: str = "pod") -> SharedObject:
        created = await self.client.create(POD, pod(name), "default")
        await self.settle()
        return created

    async def get(self, name: str = "pod") -> SharedObject:
        return await self.client.get(POD, name, "default")

    async def conditions(self, name: str = "pod") -> dict[str, str]:
        found = (await self.get(name))["status"].get("conditions") or []
        return {condition["type"]: condition["status"] for condition in found}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    clock = ManualClock()
    server = ApiServer(tmp_path, clock=clock)
    await server.start()
    rig = Rig(server, clock)
    rig.running = asyncio.create_task(rig.node.run())
    await rig.node.synced()
    yield rig
    await rig.stop()
    await server.stop()


async def test_pod_seen_while_stopping_is_left_to_the_next_node(rig: Rig) -> None:
    await rig.stop()
    rig.node.pods.record_write(await rig.client.create(POD, pod("late"), "default"))
    assert "nodeName" not in (await rig.get("late"))["spec"]


async def test_pod_becomes_ready(rig: Rig) -> None:
    await rig.create()

    found = await rig.get()
    assert found["spec"]["nodeName"] == "node-1"
    assert found["status"]["phase"] == "Running"
    assert found["status"]["podIPs"] == [{"ip": "10.0.0.1"}]
    assert await rig.conditions() == {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }


async def test_stages_are_delayed(rig: Rig) -> None:
    rig.node.delays = dict.fromkeys(StartupStage, 1.0)
    await rig.create()

    seen = []
    for _ in StartupStage:
        await rig.passes(1)
        found = await rig.get()
        conditions = await rig.conditions()
        true = [type for type, status in conditions.items() if status == "True"]
        seen.append((found["status"]["phase"], "podIP" in found["status"], true))
    assert seen == [
        ("Pending", False, ["PodScheduled"]),
        ("Pending", False, ["PodScheduled", "Initialized"]),
        ("Pending", True, ["PodScheduled", "Initialized"]),
        ("Running", True, ["PodScheduled", "Initialized"]),
        ("Running", True, ["PodScheduled", "Initialized", "ContainersReady"]),
        ("Running", True, ["PodScheduled", "Initialized", "ContainersReady", "Ready"]),
    ]
    ready = condition_of(await rig.get(), "Ready")
    assert ready is not None and ready["lastTransitionTime"] == "2026-01-01T00:00:06Z"


async def test_every_pod_has_its_own_address(rig: Rig) -> None:
    await rig.create("one")
    await rig.create("two")
    addresses = {(await rig.get(name))["status"]["podIP"] for name in ("one", "two")}
    assert addresses == {"10.0.0.1", "10.0.0.2"}


async def test_pod_can_hang(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.HANGING
    await rig.create()
    await rig.passes(3600)
    assert (await rig.get())["status"]["phase"] == "Running"
    assert (await rig.conditions())["Ready"] == "False"


@pytest.mark.parametrize(("fate", "phase"), [(Fate.FAILED, "Failed"), (Fate.SUCCEEDED, "Succeeded")])
async def test_pod_can_end(rig: Rig, fate: Fate, phase: str) -> None:
    rig.node.fate = lambda pod: fate
    await rig.create()
    assert (await rig.get())["status"]["phase"] == phase
    assert (await rig.conditions())["Ready"] == "False"


async def test_unschedulable_pod_is_scheduled_later(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await rig.create()
    found = await rig.get()
    scheduled = condition_of(found, "PodScheduled")
    assert scheduled is not None
    assert (scheduled["status"], scheduled["reason"], scheduled["message"]) == ("False", "Unschedulable", NO_NODE)
    assert "nodeName" not in found["spec"]

    rig.node.fate = lambda pod: Fate.READY
    reconsider(rig.node)
    await rig.settle()
    assert (await rig.conditions())["Ready"] == "True"


async def test_end_ends_a_running_pod(rig: Rig) -> None:
    await rig.create()
    await rig.node.end("default", "pod", SUCCEEDED)
    found = await rig.get()
    assert found["status"]["phase"] == "Succeeded"
    assert found["status"]["podIP"] == "10.0.0.1"
    with pytest.raises(LookupError, match="node-1 has no pod default/other"):
        await rig.node.end("default", "other")


async def test_deleted_pod_is_removed_after_its_termination_time(rig: Rig) -> None:
    rig.node.termination = 5
    await rig.create()
    await rig.client.delete(POD, "pod", "default")
    await rig.passes(4)
    assert (await rig.get())["metadata"]["deletionTimestamp"]
    await rig.passes(1)
    with pytest.raises(NotFound):
        await rig.get()
    assert Key("default", "pod") not in rig.node.pods


async def test_pod_deleted_while_starting_is_not_reported(rig: Rig) -> None:
    rig.node.delays = {StartupStage.READY: 10}
    rig.node.termination = 60
    await rig.create()
    await rig.client.delete(POD, "pod", "default")
    await rig.passes(30)
    assert (await rig.conditions())["Ready"] == "False"


async def test_failed_report_is_retried(rig: Rig) -> None:
    failures = iter([ServiceUnavailable("not now"), ConnectionError("cut")])

    def fault(request: Request) -> Exception | None:
        return next(failures, None) if request.method == "PATCH" else None

    rig.wire.fault = fault
    await rig.create()
    assert await rig.conditions() == {"PodScheduled": "True"}
    await rig.passes(1)
    await rig.passes(1)
    assert (await rig.conditions())["Ready"] == "True"


async def test_binding_with_a_lost_response_counts(rig: Rig) -> None:
    lost: list[Request] = []

    def lose_the_first(request: Request) -> Fault | None:
        if request.path.endswith("/binding") and not lost:
            lost.append(request)
            return Fault.LOSE
        return None

    rig.wire.fault = lose_the_first
    await rig.create()
    await rig.passes(1)
    assert lost
    assert (await rig.conditions())["Ready"] == "True"


async def test_only_one_of_two_nodes_binds_a_pod(rig: Rig) -> None:
    other = SimulatedNode(rig.client, rig.clock, name="node-2")
    task = asyncio.create_task(other.run())
    await other.synced()
    try:
        await rig.create()
        pods = rig.node.pods
        async with asyncio.timeout(20):
            ready = asyncio.Event()
            pods.subscribe(lambda key, old, new: ready.set() if new is not None and new.ready else None)
            await ready.wait()
        assert (await rig.get())["spec"]["nodeName"] in ("node-1", "node-2")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_restarted_node_continues(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.HANGING
    await rig.create()
    again = SimulatedNode(Client(rig.wire), rig.clock, name="node-1")
    task = asyncio.create_task(again.run())
    await again.synced()
    await rig.settle()
    try:
        assert (await rig.conditions())["Ready"] == "True"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("fate", "phase", "ready"),
    [(Fate.READY, "Running", "True"), (Fate.HANGING, "Running", "False"), (Fate.FAILED, "Failed", "False")],
)
async def test_brief_node_reports_in_two_writes(rig: Rig, fate: Fate, phase: str, ready: str) -> None:
    rig.node.brief = True
    rig.node.fate = lambda pod: fate
    await rig.create()
    assert (await rig.get())["status"]["phase"] == phase
    assert (await rig.conditions())["Ready"] == ready
    written = [request.path.rpartition("/")[2] for request in rig.wire.requests if request.method != "GET"]
    assert written == ["binding", "status"]
