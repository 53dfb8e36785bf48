"""The Sandbox controller on a real API with a simulated node and a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandpool.api.conditions import condition_of, is_ready
from sandpool.api.kinds import EVENT, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL, SERVICE
from sandpool.api.labels import (
    ADOPTABLE,
    CREATED_BY,
    LAUNCH_TYPE,
    POD_NAME,
    SANDBOX_NAME_HASH,
    TRACE_CONTEXT,
    WARM_POOL,
)
from sandpool.api.names import name_hash
from sandpool.api.resource import Key, Object, ResourceType, SharedObject
from sandpool.api.views import SandboxView
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import Caches, InformerSet
from sandpool.controllers.options import SandboxOptions
from sandpool.controllers.sandbox.controller import SandboxController, is_foreground
from sandpool.engine.clock import timestamp
from sandpool.engine.controller import DONE
from sandpool.engine.events import EventRecorder
from sandpool.engine.tracing import NoTracing
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import InternalError, NotFound, TooManyRequests
from sandpool.kube.transport import Request
from sandpool.node.simulated import NO_NODE, Fate, SimulatedNode, StartupStage
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import Fault, FaultyTransport, no_fault
from sandpool.testing.objects import new, pod_template
from sandpool.testing.quiescence import settle
from tests.support.api_objects import owner_reference
from tests.support.manual_time import pass_time

NOW = "2026-01-01T00:00:00Z"
BOX = name_hash("box")


class Rig:
    """The controller and a node, each with its own transport. Users have ``client``, whose requests are not counted."""

    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.client = server.client(name="users")
        self.clock = clock
        self.wire = FaultyTransport(server.client(name="controller").transport)
        self.node_transport = FaultyTransport(server.client(name="node").transport)
        self.events_wire = FaultyTransport(server.client(name="events").transport)
        self.node = SimulatedNode(Client(self.node_transport), clock, name="node-1")
        self.caches = Caches()
        self.recorder = EventRecorder(Client(self.events_wire), clock, "test")
        controller = Client(self.wire)
        self.informers = InformerSet(self.caches, controller, clock, Random(0))
        self.sandboxes = SandboxController(Dependencies.of(controller, self.caches, self.recorder, clock, Random(0)))

    @property
    def wires(self) -> tuple[FaultyTransport, ...]:
        return self.wire, self.node_transport, self.events_wire

    @property
    def passes(self) -> int:
        return self.sandboxes.controller.reconciles

    async def settle(self) -> None:
        await settle(self.clock, *self.wires)

    async def wait(self, seconds: float) -> None:
        await pass_time(self.clock, seconds, *self.wires)

    def writes(self) -> list[str]:
        """Return the writes of the controller since the last call, without Events."""
        requests, self.wire.requests = self.wire.requests, []
        return [_spelt(request) for request in requests if request.method != "GET"]

    async def create(self, type: ResourceType, name: str, **fields: Any) -> SharedObject:
        created = await self.client.create(type, new(type, name, **fields), "default")
        await self.settle()
        return created

    async def sandbox(self, *, metadata: Object | None = None, **spec: Any) -> SharedObject:
        spec = {"podTemplate": pod_template(), **spec}
        return await self.create(SANDBOX, "box", metadata=metadata or {}, spec=spec)

    async def patch(self, type: ResourceType, name: str, body: Object) -> None:
        await self.client.patch(type, name, MergePatch(body), "default")
        await self.settle()

    async def get(self, type: ResourceType = SANDBOX, name: str = "box") -> SharedObject:
        return await self.client.get(type, name, "default")

    async def exists(self, type: ResourceType, name: str = "box") -> bool:
        try:
            await self.get(type, name)
        except NotFound:
            return False
        return True

    async def condition(self, type: str) -> tuple[str, str, str]:
        condition = condition_of(await self.get(), type)
        assert condition is not None, f"no condition {type}"
        return condition["status"], condition["reason"], condition["message"]


def _spelt(request: Request) -> str:
    path = request.path.split("/namespaces/default/")[1]
    return f"{request.method} {path}"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    clock = ManualClock()
    server = ApiServer(tmp_path, clock=clock)
    await server.start()
    rig = Rig(server, clock)
    rig.recorder.start()
    tasks = [asyncio.create_task(rig.node.run()), asyncio.create_task(rig.informers.run())]
    await rig.node.synced()
    await rig.informers.synced()
    tasks.append(asyncio.create_task(rig.sandboxes.controller.run()))
    await rig.settle()
    rig.writes()
    yield rig
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await rig.recorder.stop()
    await server.stop()


def conditions(*told: tuple[str, str, str, str]) -> list[Object]:
    return [
        {
            "type": type,
            "status": status,
            "observedGeneration": 1,
            "lastTransitionTime": NOW,
            "reason": reason,
            "message": message,
        }
        for type, status, reason, message in told
    ]


# --- launching -------------------------------------------------------------------------------------------------------


async def test_sandbox_becomes_ready(rig: Rig) -> None:
    await rig.sandbox()

    assert (await rig.get())["status"] == {
        "conditions": conditions(
            ("Suspended", "False", "NotSuspended", "Sandbox is not suspended"),
            ("PodScheduled", "True", "PodScheduled", ""),
            ("Ready", "True", "DependenciesReady", "Pod is Ready"),
        ),
        "nodeName": "node-1",
        "podIPs": ["10.0.0.1"],
        "selector": f"{SANDBOX_NAME_HASH}={BOX}",
    }


async def test_pod_has_the_owner_and_label_of_its_sandbox(rig: Rig) -> None:
    box = await rig.sandbox()
    pod = await rig.get(POD)
    assert pod["metadata"]["labels"] == {SANDBOX_NAME_HASH: BOX}
    assert pod["metadata"]["ownerReferences"] == [owner_reference(box, controller=True, block=True)]
    managers = {entry["manager"] for entry in pod["metadata"]["managedFields"] if "subresource" not in entry}
    assert "sandbox-controller" in managers


async def test_launch_costs_two_writes_and_two_reconciles(rig: Rig) -> None:
    """The sandbox is that of a pool, and the node reports every stage of the pod separately."""
    rig.node.delays = dict.fromkeys(StartupStage, 0.5)
    pool = await rig.create(SANDBOX_WARM_POOL, "pool", spec={"replicas": 0, "sandboxTemplateRef": {"name": "python"}})
    labels = {WARM_POOL: name_hash("pool"), CREATED_BY: "controller"}
    references = [owner_reference(pool, controller=True, block=True)]
    await rig.sandbox(metadata={"labels": labels, "annotations": {POD_NAME: "box"}, "ownerReferences": references})
    await rig.wait(60)

    assert rig.writes() == ["POST pods", "PATCH sandboxes/box/status"]
    assert rig.passes == 2
    assert len([each for each in rig.node_transport.requests if each.method != "GET"]) == 6
    assert (await rig.condition("Ready"))[0] == "True"


async def test_slow_launch_writes_its_progress_after_ten_seconds(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.HANGING
    await rig.sandbox()
    assert rig.writes() == ["POST pods"]
    await rig.wait(9.9)
    assert "status" not in await rig.get()
    await rig.wait(0.2)
    assert await rig.condition("Ready") == ("False", "DependenciesNotReady", "Pod is Running but not Ready")
    await rig.wait(600)
    assert rig.writes() == ["PATCH sandboxes/box/status"]


async def test_unschedulable_pod_is_reported_at_once(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await rig.sandbox()
    assert await rig.condition("PodScheduled") == ("False", "Unschedulable", NO_NODE)
    assert await rig.condition("Ready") == ("False", "DependenciesNotReady", "Pod exists with phase: Pending")


@pytest.mark.parametrize(
    ("fate", "reason", "message"),
    [(Fate.FAILED, "PodFailed", "Pod failed"), (Fate.SUCCEEDED, "PodSucceeded", "Pod completed successfully")],
)
async def test_finished_pod_is_not_replaced(rig: Rig, fate: Fate, reason: str, message: str) -> None:
    rig.node.fate = lambda pod: fate
    await rig.sandbox()
    await rig.wait(60)
    assert await rig.condition("Finished") == ("True", reason, message)
    assert await rig.condition("Ready") == ("False", reason, message)
    assert rig.writes() == ["POST pods", "PATCH sandboxes/box/status"]


async def test_deleted_pod_is_replaced_after_it_has_terminated(rig: Rig) -> None:
    rig.node.termination = 5
    await rig.sandbox()
    first = (await rig.get(POD))["metadata"]["uid"]
    rig.writes()
    await rig.client.delete(POD, "box", "default")
    await rig.wait(4)
    assert "POST pods" not in rig.writes()
    await rig.wait(2)
    assert (await rig.get(POD))["metadata"]["uid"] != first
    assert (await rig.condition("Ready"))[0] == "True"


async def test_unchanged_sandbox_causes_no_write(rig: Rig) -> None:
    await rig.sandbox()
    passes = rig.passes
    rig.writes()
    await rig.patch(SANDBOX, "box", {"status": {"nodeName": "node-1"}})
    await rig.wait(3600)
    assert rig.writes() == []
    assert rig.passes == passes


async def test_claiming_a_sandbox_costs_one_write_and_one_reconcile(rig: Rig) -> None:
    """Only the metadata of the pod change when a claim adopts a sandbox."""
    pool = await rig.create(SANDBOX_WARM_POOL, "pool", spec={"replicas": 0, "sandboxTemplateRef": {"name": "python"}})
    references = [owner_reference(pool, controller=True, block=True)]
    await rig.sandbox(metadata={"labels": {WARM_POOL: name_hash("pool")}, "ownerReferences": references})
    assert (await rig.get(POD))["metadata"]["labels"] == {SANDBOX_NAME_HASH: BOX, WARM_POOL: name_hash("pool")}
    claim = await rig.create(SANDBOX_CLAIM, "claim", spec={"warmPoolRef": {"name": "pool"}})
    passes = rig.passes
    rig.writes()

    references = [owner_reference(claim, controller=True, block=True)]
    await rig.patch(SANDBOX, "box", {"metadata": {"labels": {WARM_POOL: None}, "ownerReferences": references}})
    await rig.wait(60)
    assert rig.writes() == ["PATCH pods/box"]
    assert rig.passes == passes + 1
    assert (await rig.get(POD))["metadata"]["labels"] == {SANDBOX_NAME_HASH: BOX}


async def test_deferred_write_is_done_when_the_window_ends(rig: Rig) -> None:
    rig.sandboxes.options = SandboxOptions(write_behind=timedelta(seconds=0.5))
    await rig.sandbox()
    rig.writes()
    await rig.patch(SANDBOX, "box", {"spec": {"podTemplate": {"metadata": {"labels": {"color": "red"}}}}})
    await rig.wait(0.3)
    await rig.patch(SANDBOX, "box", {"spec": {"podTemplate": {"metadata": {"labels": {"size": "small"}}}}})
    assert rig.writes() == []
    await rig.wait(0.3)
    assert rig.writes() == ["PATCH pods/box"]
    labels = (await rig.get(POD))["metadata"]["labels"]
    assert labels == {SANDBOX_NAME_HASH: BOX, "color": "red", "size": "small"}


# --- suspending ------------------------------------------------------------------------------------------------------


async def test_sandbox_is_suspended_and_resumed(rig: Rig) -> None:
    rig.node.termination = 5
    await rig.sandbox()
    rig.writes()

    await rig.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})
    assert await rig.condition("Suspended") == ("False", "PodTerminating", "Pod is terminating. Sandbox is suspending")
    assert await rig.condition("Ready") == ("False", "SandboxSuspended", "Sandbox is suspending")
    await rig.wait(5)
    assert await rig.condition("Suspended") == (
        "True",
        "PodTerminated",
        "Pod has been terminated. Sandbox is suspended",
    )
    assert await rig.condition("Ready") == ("False", "SandboxSuspended", "Sandbox is suspended")
    assert not await rig.exists(POD)
    assert rig.writes() == ["DELETE pods/box", "PATCH sandboxes/box/status", "PATCH sandboxes/box/status"]

    await rig.patch(SANDBOX, "box", {"spec": {"operatingMode": "Running"}})
    assert await rig.condition("Ready") == ("True", "DependenciesReady", "Pod is Ready")
    assert await rig.condition("Suspended") == ("False", "NotSuspended", "Sandbox is not suspended")
    assert rig.writes()[0] == "POST pods"


async def test_sandbox_created_suspended_has_no_pod(rig: Rig) -> None:
    await rig.sandbox(operatingMode="Suspended")
    assert rig.writes() == ["PATCH sandboxes/box/status"]
    assert (await rig.condition("Suspended"))[0] == "True"


# --- expiring --------------------------------------------------------------------------------------------------------


async def test_expired_sandbox_is_retained_without_pod_and_service(rig: Rig) -> None:
    shutdown = timestamp(rig.clock.now() + timedelta(seconds=60))
    await rig.sandbox(service=True, shutdownTime=shutdown)
    await rig.wait(59)
    assert (await rig.condition("Ready"))[0] == "True"
    rig.writes()
    await rig.wait(2)

    assert rig.writes() == [
        "PATCH sandboxes/box/status",
        "DELETE pods/box",
        "DELETE services/box",
        "PATCH sandboxes/box/status",
    ]
    assert (await rig.get())["status"].keys() == {"conditions"}
    assert await rig.condition("Ready") == ("False", "SandboxExpired", "Sandbox has expired")
    assert not await rig.exists(POD)
    assert not await rig.exists(SERVICE)
    await rig.wait(3600)
    assert rig.writes() == []


async def test_expired_sandbox_is_deleted_with_policy_delete(rig: Rig) -> None:
    shutdown = timestamp(rig.clock.now() + timedelta(seconds=60))
    await rig.sandbox(shutdownTime=shutdown, shutdownPolicy="Delete")
    rig.writes()
    await rig.wait(61)
    assert rig.writes() == ["PATCH sandboxes/box/status", "DELETE pods/box", "DELETE sandboxes/box"]
    assert not await rig.exists(SANDBOX)


async def test_extended_shutdown_time_restores_an_expired_sandbox(rig: Rig) -> None:
    await rig.sandbox(shutdownTime=timestamp(rig.clock.now()))
    await rig.wait(1)
    assert (await rig.condition("Ready"))[1] == "SandboxExpired"
    await rig.patch(SANDBOX, "box", {"spec": {"shutdownTime": None}})
    assert (await rig.condition("Ready"))[0] == "True"


# --- Service and volumes ---------------------------------------------------------------------------------------------


async def test_service_is_created_and_deleted_with_its_field(rig: Rig) -> None:
    ports = {"containers": [{"name": "main", "image": "i", "ports": [{"containerPort": 8080}]}]}
    await rig.sandbox(service=True, podTemplate=pod_template(spec=ports))
    status = (await rig.get())["status"]
    assert (status["service"], status["serviceFQDN"]) == ("box", "box.default.svc.cluster.local")
    assert await rig.condition("Ready") == ("True", "DependenciesReady", "Pod is Ready; Service Exists")
    assert rig.writes() == ["POST pods", "POST services", "PATCH sandboxes/box/status"]
    spec = (await rig.get(SERVICE))["spec"]
    assert (spec["clusterIP"], spec["selector"]) == ("None", {SANDBOX_NAME_HASH: BOX})

    await rig.patch(SANDBOX, "box", {"spec": {"service": False}})
    assert rig.writes() == ["DELETE services/box", "PATCH sandboxes/box/status"]
    assert "service" not in (await rig.get())["status"]
    assert await rig.condition("Ready") == ("True", "DependenciesReady", "Pod is Ready")


async def test_deleted_service_is_created_again(rig: Rig) -> None:
    await rig.sandbox(service=True)
    rig.writes()
    await rig.client.delete(SERVICE, "box", "default")
    await rig.settle()
    assert rig.writes() == ["POST services"]


async def test_volume_claims_are_created_before_the_pod_and_kept_while_suspended(rig: Rig) -> None:
    volume = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await rig.sandbox(volumeClaimTemplates=[volume])
    assert rig.writes() == ["POST persistentvolumeclaims", "POST pods", "PATCH sandboxes/box/status"]
    pod = await rig.get(POD)
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-box"}} in pod["spec"]["volumes"]

    await rig.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})
    assert await rig.exists(PERSISTENT_VOLUME_CLAIM, "data-box")


# --- what others made ------------------------------------------------------------------------------------------------


async def test_foreign_pod_is_refused(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await rig.create(POD, "box", spec=pod_template()["spec"])
    await rig.sandbox()
    assert await rig.condition("Ready") == (
        "False",
        "ReconcilerError",
        'Error seen: cannot adopt unowned pod "box" for sandbox "box": it has no label '
        'agents.x-k8s.io/adoptable="true"',
    )
    assert "ownerReferences" not in (await rig.get(POD))["metadata"]
    assert set(rig.writes()) == {"PATCH sandboxes/box/status"}
    assert rig.sandboxes.controller.failures > 0, "another client may resolve it, so it is retried"

    rig.node.fate = lambda pod: Fate.READY
    await rig.client.delete(POD, "box", "default")
    await rig.settle()
    assert (await rig.condition("Ready"))[0] == "True"


async def test_adoptable_pod_is_adopted(rig: Rig) -> None:
    await rig.create(POD, "prepared", metadata={"labels": {ADOPTABLE: "true"}}, spec=pod_template()["spec"])
    await rig.sandbox(metadata={"annotations": {POD_NAME: "prepared"}})
    assert (await rig.condition("Ready"))[0] == "True"
    assert rig.writes() == ["PATCH pods/prepared", "PATCH sandboxes/box/status"]
    assert not await rig.exists(POD)


async def test_r2_pod_wanted_by_two_sandboxes_is_adopted_by_one(rig: Rig) -> None:
    """Both see an unowned pod and try to adopt it."""
    await rig.create(POD, "prepared", metadata={"labels": {ADOPTABLE: "true"}}, spec=pod_template()["spec"])
    send, both = rig.wire.transport.request, asyncio.Event()
    asked: list[Request] = []
    owners: list[str] = []

    async def together(request: Request) -> Any:
        if not (request.path.endswith("/pods/prepared") and request.method == "PATCH"):
            return await send(request)
        asked.append(request)
        if len(asked) == 2:
            both.set()
        await both.wait()
        answer = await send(request)
        owners.append(answer["metadata"]["ownerReferences"][0]["name"])
        return answer

    rig.wire.transport.request = together  # type: ignore[method-assign]
    body = {"metadata": {"annotations": {POD_NAME: "prepared"}}, "spec": {"podTemplate": pod_template()}}
    for name in ("first", "second"):
        await rig.client.create(SANDBOX, new(SANDBOX, name, **body), "default")
    await both.wait()
    await rig.wait(1)
    assert len(asked) == 2
    assert len(owners) == 1, "the other was refused"
    loser = "second" if owners == ["first"] else "first"
    assert await rig.exists(POD, loser), "it has a pod of its own then"
    assert is_ready(await rig.get(name="first"))
    assert is_ready(await rig.get(name="second"))


async def test_two_pods_are_reported_and_left_alone(rig: Rig) -> None:
    box = await rig.sandbox()
    references = [owner_reference(box, controller=True)]
    await rig.create(POD, "second", metadata={"ownerReferences": references}, spec=pod_template()["spec"])
    message = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod"
    assert await rig.condition("Ready") == ("False", "MultiplePods", message)
    await rig.wait(60)
    events = (await rig.client.list(EVENT, "default"))["items"]
    assert [(event["reason"], event["note"]) for event in events] == [("MultiplePods", message)]


async def test_existing_pod_missing_from_the_cache_is_adopted_on_create(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch of pods is behind, and the sandbox has a pod already."""
    box = await rig.sandbox(operatingMode="Suspended")
    metadata = {"labels": {SANDBOX_NAME_HASH: BOX}, "ownerReferences": [owner_reference(box, controller=True)]}
    monkeypatch.setattr(rig.caches.pods, "observe", lambda pod: None)
    await rig.create(POD, "box", metadata=metadata, spec=pod_template()["spec"])
    rig.writes()
    await rig.patch(SANDBOX, "box", {"spec": {"operatingMode": "Running"}})
    assert rig.writes() == ["POST pods", "PATCH sandboxes/box/status"]
    assert Key("default", "box") in rig.caches.pods
    assert rig.sandboxes.controller.failures == 0


# --- failures --------------------------------------------------------------------------------------------------------


def failing(*paths: str, times: int = 1) -> Any:
    """Requests to write to these paths fail so many times."""
    left = dict.fromkeys(paths, times)

    def fault(request: Request) -> Exception | None:
        path = next((path for path in left if request.method != "GET" and request.path.endswith(path)), None)
        if path is None or not left[path]:
            return None
        left[path] -= 1
        return InternalError("the disk is full")

    return fault


async def test_failed_step_does_not_stop_the_others(rig: Rig) -> None:
    rig.wire.fault = failing("/services", times=100)
    await rig.sandbox(service=True)
    assert await rig.condition("Ready") == ("False", "ReconcilerError", "Error seen: the disk is full")
    assert await rig.exists(POD)

    rig.wire.fault = no_fault
    await rig.wait(1)
    assert (await rig.condition("Ready"))[0] == "True"


async def test_failed_status_write_is_retried(rig: Rig) -> None:
    rig.wire.fault = failing("/status", times=3)
    await rig.sandbox()
    await rig.wait(5)
    assert (await rig.condition("Ready"))[0] == "True"


class Context(NoTracing):
    """A tracing double with a current trace."""

    def context(self) -> str:
        return '{"traceparent":"00-1"}'


async def test_sandbox_without_trace_context_gets_one_and_keeps_it(rig: Rig) -> None:
    rig.sandboxes.tracing = Context()
    await rig.sandbox()
    assert rig.writes() == ["PATCH sandboxes/box", "POST pods", "PATCH sandboxes/box/status"]
    assert (await rig.get())["metadata"]["annotations"] == {TRACE_CONTEXT: '{"traceparent":"00-1"}'}
    assert (await rig.condition("Ready"))[0] == "True"
    await rig.patch(SANDBOX, "box", {"metadata": {"annotations": {TRACE_CONTEXT: '{"traceparent":"00-2"}'}}})
    assert rig.writes() == []


async def test_reconcile_waits_as_long_as_retry_after_says(rig: Rig) -> None:
    busy = TooManyRequests("too many requests", details={"retryAfterSeconds": 30})
    rig.wire.fault = lambda request: busy if request.method == "POST" else None
    await rig.sandbox()
    assert await rig.condition("Ready") == ("False", "ReconcilerError", "Error seen: too many requests")
    rig.writes()
    await rig.wait(29)
    assert rig.writes() == []

    rig.wire.fault = no_fault
    await rig.wait(1)
    assert (await rig.condition("Ready"))[0] == "True"


async def test_status_written_to_a_recreated_sandbox_is_corrected(rig: Rig) -> None:
    old = SandboxView.from_object(await rig.sandbox(operatingMode="Suspended"))
    await rig.client.delete(SANDBOX, "box", "default")
    await rig.sandbox(operatingMode="Suspended")
    suspended = await rig.condition("Ready")

    ready = {"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "", "lastTransitionTime": NOW}
    await rig.sandboxes._write_status(old, {"status": {"conditions": [ready]}})
    await rig.settle()
    assert await rig.condition("Ready") == suspended


async def test_r38_failing_status_write_is_retried_with_growing_backoff(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.HANGING
    rig.wire.fault = failing("/status", times=10_000)
    await rig.sandbox()
    rig.writes()
    await rig.wait(900)
    assert 10 <= rig.writes().count("PATCH sandboxes/box/status") <= 20


async def test_lost_response_creates_no_second_pod(rig: Rig) -> None:
    faults = iter([Fault.LOSE])
    rig.wire.fault = lambda request: next(faults, None) if request.method == "POST" else None
    await rig.sandbox()
    await rig.wait(1)
    assert (await rig.condition("Ready"))[0] == "True"
    assert rig.writes().count("POST pods") == 1


async def test_successor_controller_writes_nothing(rig: Rig) -> None:
    """A successor reconciles every sandbox and finds nothing to write."""
    await rig.sandbox(service=True)
    rig.writes()
    successor = SandboxController(Dependencies.of(Client(rig.wire), rig.caches, rig.recorder, rig.clock, Random(0)))
    assert await successor.reconcile(Key("default", "box")) == DONE
    assert rig.writes() == []


async def test_children_of_a_deleted_sandbox_are_not_created_again(rig: Rig) -> None:
    """The sandbox is gone, and a watch that lags has not said so."""
    box = await rig.sandbox(service=True)
    await rig.client.delete(SANDBOX, "box", "default")
    while await rig.exists(POD) or await rig.exists(SERVICE):
        await rig.wait(1)
    rig.writes()
    caches, key = Caches(), Key("default", "box")
    caches.sandboxes.observe(box)
    lagging = SandboxController(Dependencies.of(Client(rig.wire), caches, rig.recorder, rig.clock, Random(0)))
    await lagging.reconcile(key)
    assert rig.writes() == ["POST pods", "POST services"]
    for cache in (caches.pods, caches.services):
        [child] = list(cache)
        cache.record_deletion(key, child.uid)

    await lagging.reconcile(key)
    assert rig.writes() == []
    assert key not in caches.sandboxes


async def test_deleted_sandbox_leaves_no_state_behind(rig: Rig) -> None:
    rig.node.fate = lambda pod: Fate.HANGING
    await rig.sandbox()
    await rig.client.delete(SANDBOX, "box", "default")
    await rig.wait(60)
    assert rig.sandboxes._pending == {}
    assert rig.sandboxes.controller.failures == 0
    assert "PATCH sandboxes/box/status" not in rig.writes()


@pytest.mark.parametrize(
    ("launch", "owner", "ready", "expected"),
    [
        ("cold", SANDBOX_CLAIM, "False", True),
        ("cold", SANDBOX_CLAIM, "True", True),
        ("warm", SANDBOX_WARM_POOL, "False", False),
        ("warm", SANDBOX_WARM_POOL, "True", False),
        ("warm", SANDBOX_CLAIM, "True", False),
        ("warm", SANDBOX_CLAIM, "False", True),
    ],
)
def test_sandbox_is_waited_for_unless_it_is_an_unclaimed_pool_member(
    launch: str, owner: ResourceType, ready: str, expected: bool
) -> None:
    """A pool member counts as waited for if it was claimed before it was ready, or was suspended since."""
    box, its = new(SANDBOX, "box", spec={}), new(owner, "its")
    box["metadata"] |= {"namespace": "default", "uid": "1", "labels": {LAUNCH_TYPE: launch}}
    its["metadata"]["uid"] = "2"
    box["metadata"]["ownerReferences"] = [owner_reference(its, controller=True)]
    box["status"] = {"conditions": [{"type": "Ready", "status": ready, "reason": "Any", "message": ""}]}
    assert is_foreground(SandboxView.from_object(box)) is expected
    assert not is_foreground(None)
