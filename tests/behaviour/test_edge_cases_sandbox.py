"""Edge cases of sandboxes, by their numbers in docs/compatibility.md, on every backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import CONFIG_MAP, EVENT, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_WARM_POOL, SERVICE
from sandpool.api.labels import (
    ADOPTABLE,
    CREATED_BY,
    POD_NAME,
    PROPAGATED_ANNOTATIONS,
    PROPAGATED_LABELS,
    SANDBOX_NAME_HASH,
    TEMPLATE_REF_HASH,
    WARM_POOL,
)
from sandpool.api.names import name_hash
from sandpool.api.resource import Object, SharedObject
from sandpool.controllers.options import ControllerOptions, SandboxOptions
from sandpool.engine.clock import timestamp
from sandpool.kube.errors import InternalError
from sandpool.kube.transport import Request
from sandpool.node.simulated import Fate, StartupStage
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World, owner_of
from tests.support.api_objects import owner_reference
from tests.support.sandbox_objects import pod_status

HASH = name_hash("box")
TRACKING = {SANDBOX_NAME_HASH: HASH}
SELECTOR = f"{SANDBOX_NAME_HASH}={HASH}"
READY = ("True", "DependenciesReady", "Pod is Ready")
EXPIRED = ("False", "SandboxExpired", "Sandbox has expired")
NEVER = 1e6  # seconds
LASTING = 11  # seconds; what a launch that is under way says is written when it has lasted


async def pod(world: World, name: str = "box", **metadata: Any) -> SharedObject:
    return await world.create(POD, name, metadata=metadata, spec=pod_template()["spec"])


async def owned_by_another(world: World) -> Object:
    """Metadata of an object that has another controller."""
    owner = await world.create(CONFIG_MAP, "another")
    return {"ownerReferences": [owner_reference(owner, controller=True)]}


async def change(world: World, **spec: Any) -> None:
    await world.patch(SANDBOX, "box", {"spec": spec})


def soon(world: World, seconds: float) -> str:
    return timestamp(world.clock.now() + timedelta(seconds=seconds))


async def test_edge_01_created_pod_is_reported_with_the_phase_of_the_response(world: World) -> None:
    world.node.delays = {StartupStage.SCHEDULED: NEVER}
    await world.sandbox()
    await world.wait(LASTING)
    assert (await world.conditions())["Ready"] == ("False", "DependenciesNotReady", "Pod exists with phase: Pending")


async def test_edge_02_selector_is_set_for_any_pod_and_kept(world: World) -> None:
    await pod(world, **await owned_by_another(world))
    await world.sandbox(operatingMode="Suspended")
    assert (await world.get())["status"]["selector"] == SELECTOR, "the pod is foreign"
    await world.delete(POD, "box")
    assert (await world.conditions())["Suspended"][0] == "True"
    assert (await world.get())["status"]["selector"] == SELECTOR, "the pod is gone"


async def test_edge_03_foreign_pod_while_suspended_is_no_error_and_not_reported(world: World) -> None:
    made = await pod(world, **await owned_by_another(world))
    await world.sandbox(operatingMode="Suspended")
    assert await world.conditions() == {
        "Suspended": ("False", "PodNotOwned", "Refused to delete pod because it is not owned by this sandbox"),
        "Ready": ("False", "SandboxSuspended", "Sandbox is suspending"),
    }
    assert (await world.get())["status"].keys() == {"conditions", "selector"}
    assert (await world.get(POD))["metadata"]["uid"] == made["metadata"]["uid"]
    assert world.controllers.sandboxes.controller.failures == 0


async def test_edge_04_failed_deletion_while_suspending_is_reported(world: World) -> None:
    await world.sandbox()
    world.wire.fault = lambda request: InternalError("no") if request.method == "DELETE" else None
    await change(world, operatingMode="Suspended")
    told = await world.conditions()
    assert told["Suspended"] == ("False", "PodTerminating", "Pod is terminating. Sandbox is suspending")
    assert told["Ready"] == ("False", "ReconcilerError", "Error seen: no")
    world.wire.heal()
    await world.wait(10)
    assert (await world.conditions())["Suspended"][0] == "True"


async def test_edge_05_unknown_state_of_the_pod_is_reported_as_unknown(world: World) -> None:
    """The error must be the pod's: one of the Service alone says nothing about it."""
    world.wire.fault = lambda request: InternalError("no") if _writes(request, "/services") else None
    await world.sandbox(service=True)
    told = await world.conditions()
    assert told["Ready"] == ("False", "ReconcilerError", "Error seen: no")
    assert told["PodScheduled"] == ("True", "PodScheduled", "")

    world.wire.fault = lambda request: InternalError("no") if _writes(request, "/pods") else None
    await world.delete(POD, "box")
    await world.wait(10)
    told = await world.conditions()
    assert told["PodScheduled"] == (
        "Unknown",
        "PodSchedulingUnknown",
        "Pod state is unknown. Pod scheduling cannot be determined",
    )
    assert told["Suspended"] == ("False", "NotSuspended", "Sandbox is not suspended")


async def test_edge_05_suspended_is_unknown_with_two_pods(world: World) -> None:
    box = await world.sandbox()
    await pod(world, "second", ownerReferences=[owner_reference(box, controller=True)])
    await change(world, operatingMode="Suspended")
    assert (await world.conditions())["Suspended"] == (
        "Unknown",
        "PodStateUnknown",
        "Pod state is unknown. Sandbox suspension cannot be confirmed",
    )


async def test_edge_06_expiry_is_reported_before_anything_is_deleted(world: World) -> None:
    world.node.fate = lambda pod: Fate.SUCCEEDED
    await world.sandbox(service=True, shutdownTime=soon(world, 60))
    world.wire.fault = lambda request: InternalError("no") if request.method == "DELETE" else None
    await world.wait(61)
    told = await world.conditions()
    assert (told["Ready"], told["Finished"][1]) == (EXPIRED, "PodSucceeded")
    assert "PodScheduled" not in told
    assert await world.exists(POD) and await world.exists(SERVICE)
    world.wire.heal()
    await world.wait(10)
    assert not await world.exists(POD) and not await world.exists(SERVICE)
    assert "Finished" in await world.conditions()


async def test_edge_06_requeue_before_expiry_is_at_least_two_seconds(world: World) -> None:
    whole = world.clock.now().replace(microsecond=0)
    end = whole + timedelta(seconds=60)
    left = (end - world.clock.now()).total_seconds()
    await world.sandbox(shutdownTime=timestamp(end))
    await world.wait(left - 0.5)
    passes = world.controllers.sandboxes.controller.reconciles
    await world.patch(SANDBOX, "box", {"metadata": {"labels": {"look": "again"}}})
    assert world.controllers.sandboxes.controller.reconciles == passes + 1
    await world.wait(1.9)
    assert is_ready(await world.get()), "half a second before the end, two seconds are waited"
    await world.wait(0.2)
    assert (await world.conditions())["Ready"] == EXPIRED


async def test_edge_06_sandbox_expires_at_the_shutdown_time_itself(world: World) -> None:
    end = world.clock.now().replace(microsecond=0) + timedelta(seconds=60)
    await world.sandbox(shutdownTime=timestamp(end))
    await world.wait((end - world.clock.now()).total_seconds())
    await world.wait(0.01)  # the second pass follows the first
    assert (await world.conditions())["Ready"] == EXPIRED
    assert not await world.exists(POD)


async def test_edge_07_retained_sandbox_keeps_only_its_conditions(world: World) -> None:
    await world.sandbox(service=True, shutdownTime=soon(world, 60))
    kept = {"conditions", "nodeName", "podIPs", "selector", "service", "serviceFQDN"}
    assert (await world.get())["status"].keys() == kept
    await world.wait(61)
    assert (await world.get())["status"].keys() == {"conditions"}


@pytest.mark.parametrize("end", ["expired", "suspended"])
async def test_edge_08_adopted_pod_of_another_name_is_deleted(world: World, end: str) -> None:
    await pod(world, "prepared", labels={ADOPTABLE: "true"})
    await pod(world, "neighbour")
    await world.sandbox(metadata={"annotations": {POD_NAME: "prepared"}})
    assert is_ready(await world.get())
    await change(world, **({"shutdownTime": soon(world, 0)} if end == "expired" else {"operatingMode": "Suspended"}))
    await world.wait(1)
    assert [each["metadata"]["name"] for each in await world.all(POD)] == ["neighbour"]


@pytest.mark.parametrize("owner", ["missing", "another owner"])
async def test_edge_08_unowned_pod_survives_suspension_and_the_annotation_is_removed(world: World, owner: str) -> None:
    metadata = {} if owner == "missing" else await owned_by_another(world)
    await pod(world, "theirs", labels={ADOPTABLE: "true"}, **metadata)
    await world.sandbox(operatingMode="Suspended", metadata={"annotations": {POD_NAME: "theirs"}})
    assert await world.exists(POD, "theirs")
    assert POD_NAME not in (await world.get())["metadata"].get("annotations", {})
    assert world.controllers.sandboxes.controller.failures == 0


async def test_edge_08_unowned_pod_survives_expiry(world: World) -> None:
    await pod(world)
    await world.sandbox(shutdownTime=soon(world, 0))
    await world.wait(1)
    assert (await world.conditions())["Ready"] == EXPIRED
    assert owner_of(await world.get(POD)) == ("", "")


async def test_edge_09_annotation_is_repaired_to_an_owned_survivor(world: World) -> None:
    box = await world.sandbox(operatingMode="Suspended", metadata={"annotations": {POD_NAME: "nowhere"}})
    references = [owner_reference(box, controller=True)]
    world.wire.fault = lambda request: Fault.CUT if request.method == "DELETE" else None
    survivor = await pod(world, "survivor", ownerReferences=references, labels=TRACKING)
    world.wire.heal()
    await world.patch(
        SANDBOX, "box", {"metadata": {"annotations": {POD_NAME: "gone"}}, "spec": {"operatingMode": "Running"}}
    )
    await world.wait(1)
    assert (await world.get())["metadata"]["annotations"] == {POD_NAME: "survivor"}
    assert [each["metadata"]["uid"] for each in await world.all(POD)] == [survivor["metadata"]["uid"]]
    assert is_ready(await world.get())


async def test_edge_09_pod_of_an_earlier_sandbox_of_the_name_is_not_owned(world: World) -> None:
    """The garbage collector deletes the pod. Until then its name is taken."""
    former = {"apiVersion": SANDBOX.api_version, "kind": "Sandbox", "name": "box", "uid": "former", "controller": True}
    finalizers = ["example.com/keep"]
    await pod(world, ownerReferences=[former], labels=TRACKING, finalizers=finalizers)
    await world.sandbox()
    assert (await world.conditions())["Ready"] == (
        "False",
        "ReconcilerError",
        'Error seen: pod "box" is owned by Sandbox/box (UID: former), not by sandbox "box"',
    )
    await world.patch(POD, "box", {"metadata": {"finalizers": None}})

    async def replaced() -> bool:
        await world.wait(1)
        return is_ready(await world.get())

    await world.until(replaced)


async def test_edge_10_terminating_pod_is_awaited_and_decides_ready(world: World) -> None:
    world.node.termination = 30
    await world.sandbox()
    first = (await world.get(POD))["metadata"]["uid"]
    await world.delete(POD, "box")
    await world.wait(29)
    assert (await world.get(POD))["metadata"]["uid"] == first
    assert (await world.conditions())["Ready"] == READY
    await world.wait(2)
    assert (await world.get(POD))["metadata"]["uid"] != first
    assert (await world.conditions())["Ready"] == READY


async def test_edge_11_two_pods_cause_one_event_and_no_write(world: World) -> None:
    box = await world.sandbox(operatingMode="Suspended")
    world.wire.fault = lambda request: Fault.CUT if request.method == "DELETE" else None
    for name in ("first", "second"):
        await pod(world, name, ownerReferences=[owner_reference(box, controller=True)])
    world.wire.heal()
    await change(world, operatingMode="Running", service=True)
    await world.wait(600)
    message = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod"
    assert (await world.conditions())["Ready"] == ("False", "MultiplePods", message)
    assert sorted(each["metadata"]["name"] for each in await world.all(POD)) == ["first", "second"]
    assert not await world.exists(SERVICE)
    assert [each["reason"] for each in await world.all(EVENT)] == ["MultiplePods"]


async def test_edge_12_pod_with_all_labels_is_still_adopted(world: World) -> None:
    """The tracking label alone is enough, and nothing but the owner is left to write."""
    await pod(world, labels=TRACKING)
    world.written()
    await world.sandbox()
    assert world.written() == ["patch pods", "patch sandboxes/status"]
    assert owner_of(await world.get(POD)) == ("Sandbox", "box")


async def test_edge_13_template_cannot_set_reserved_keys(world: World) -> None:
    labels = {SANDBOX_NAME_HASH: "x", "extensions.agents.x-k8s.io/y": "1", CREATED_BY: "me", "mine": "1"}
    annotations = {PROPAGATED_LABELS: "x", "opentelemetry.io/trace-context": "{}", "mine": "1"}
    await world.sandbox(podTemplate=pod_template(labels=labels, annotations=annotations))
    metadata = (await world.get(POD))["metadata"]
    assert metadata["labels"] == {**TRACKING, "mine": "1"}
    assert metadata["annotations"] == {"mine": "1", PROPAGATED_LABELS: "mine", PROPAGATED_ANNOTATIONS: "mine"}


async def test_edge_13_reserved_keys_propagated_earlier_are_removed(world: World) -> None:
    """Keys in the list of propagated keys are removed. Other keys with our prefixes stay, unless the controller manages
    them."""
    await world.sandbox()
    old = "agents.x-k8s.io/old"
    labels = {old: "1", "agents.x-k8s.io/unlisted": "1", TEMPLATE_REF_HASH: "1", WARM_POOL: "1", CREATED_BY: "me"}
    annotations = {old: "1", PROPAGATED_LABELS: f"{old},{SANDBOX_NAME_HASH}", PROPAGATED_ANNOTATIONS: old}
    await world.patch(POD, "box", {"metadata": {"labels": labels, "annotations": annotations}})
    metadata = (await world.get(POD))["metadata"]
    assert metadata["labels"] == {**TRACKING, "agents.x-k8s.io/unlisted": "1"}
    assert metadata["annotations"] == {PROPAGATED_LABELS: "", PROPAGATED_ANNOTATIONS: ""}


async def test_edge_14_labels_of_a_standalone_sandbox_are_not_propagated(world: World) -> None:
    identity = {WARM_POOL: "11111111", TEMPLATE_REF_HASH: "22222222"}
    await world.sandbox(metadata={"labels": identity}, podTemplate=pod_template(labels=identity))
    assert (await world.get(POD))["metadata"]["labels"] == TRACKING


async def test_edge_14_labels_are_removed_from_the_pod_with_the_pool(world: World) -> None:
    room = {"replicas": 1, "sandboxTemplateRef": {"name": "missing"}}
    pool = await world.create(SANDBOX_WARM_POOL, "pool", spec=room)
    references = [owner_reference(pool, controller=True)]
    identity = {WARM_POOL: name_hash("pool"), TEMPLATE_REF_HASH: "22222222"}
    await world.sandbox(metadata={"labels": identity, "ownerReferences": references})
    assert (await world.get(POD))["metadata"]["labels"] == {**TRACKING, **identity}
    await world.delete(SANDBOX_WARM_POOL, "pool", propagation_policy="Orphan")

    async def forgotten() -> bool:
        found: dict[str, str] = (await world.get(POD))["metadata"]["labels"]
        return found == TRACKING

    await world.until(forgotten)


PORT = pod_template(
    spec={"containers": [{"name": "main", "image": "example.com/image:1", "ports": [{"containerPort": 80}]}]}
)


async def test_edge_15_ports_of_a_kept_service_are_not_reconciled(world: World) -> None:
    await world.sandbox(service=True, podTemplate=PORT)
    await change(world, service=None)
    body: Object = {"metadata": {"labels": {SANDBOX_NAME_HASH: None}}, "spec": {"ports": [{"port": 9}]}}
    await world.patch(SERVICE, "box", {**body, "spec": {**body["spec"], "selector": {"app": "x"}}})
    service = await world.get(SERVICE)
    assert (service["metadata"]["labels"], service["spec"]["selector"]) == (TRACKING, TRACKING)
    assert [each["port"] for each in service["spec"]["ports"]] == [9]


async def test_edge_15_adoption_overwrites_ports_even_with_none(world: World) -> None:
    spec = {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 9}]}
    await world.create(SERVICE, "box", metadata={"labels": {ADOPTABLE: "true"}}, spec=spec)
    await world.sandbox(service=True)
    assert (await world.get(SERVICE))["spec"].get("ports", []) == []


async def test_edge_15_extra_fields_of_a_port_are_preserved(world: World) -> None:
    await world.sandbox(service=True, podTemplate=PORT)
    (port,) = (await world.get(SERVICE))["spec"]["ports"]
    world.written()
    await world.patch(SERVICE, "box", {"spec": {"ports": [{**port, "appProtocol": "http"}]}})
    await change(world, podTemplate={"metadata": {"labels": {"look": "again"}}})
    assert "patch services" not in world.written()
    assert (await world.get(SERVICE))["spec"]["ports"] == [{**port, "appProtocol": "http"}]


async def test_edge_16_conditions_are_updated_in_place(world: World) -> None:
    await world.sandbox()
    for mode in ("Suspended", "Running"):
        await change(world, operatingMode=mode)
    types = [each["type"] for each in (await world.get())["status"]["conditions"]]
    assert sorted(types) == ["PodScheduled", "Ready", "Suspended"]


async def test_edge_16a_foreign_service_is_an_error_without_a_requested_service(world: World) -> None:
    metadata = await owned_by_another(world)
    uid = metadata["ownerReferences"][0]["uid"]
    await world.create(SERVICE, "box", metadata=metadata, spec={"clusterIP": "None", "selector": {"app": "x"}})
    await world.sandbox()
    assert (await world.conditions())["Ready"] == (
        "False",
        "ReconcilerError",
        f'Error seen: service "box" is owned by ConfigMap/another (UID: {uid}), not by sandbox "box"',
    )


async def test_edge_17_node_name_alone_is_not_written_before_ready_and_is_after(world: World) -> None:
    world.node.delays = {StartupStage.INITIALIZED: NEVER}
    await world.sandbox()
    await world.wait(9)
    assert world.written() == ["create pods"], "the node name alone is not urgent"
    status = pod_status("Running", ready=True, ips=["10.0.0.9"])
    await world.patch(POD, "box", {"status": status}, "status")
    assert (await world.get())["status"]["nodeName"] == "node"
    assert world.written() == ["patch sandboxes/status"]


@pytest.mark.parametrize(("asked", "window"), [(0.5, 0.5), (60, 1)], ids=["half a second", "at most a second"])
async def test_edge_18_second_reconcile_does_not_extend_the_window(world: World, asked: float, window: float) -> None:
    await world.restart(settings=ControllerOptions(sandbox=SandboxOptions(write_behind=timedelta(seconds=asked))))
    await world.sandbox()
    world.written()
    await change(world, podTemplate={"metadata": {"labels": {"a": "1"}}})
    await world.wait(window - 0.1)
    await change(world, podTemplate={"metadata": {"labels": {"b": "1"}}})
    assert world.written() == []
    await world.wait(0.2)
    assert world.written() == ["patch pods"]
    late = (await world.get(POD))["metadata"]
    await world.restart(settings=ControllerOptions())
    await world.sandbox("prompt", podTemplate=pod_template(labels={"a": "1", "b": "1"}))
    prompt = (await world.get(POD, "prompt"))["metadata"]
    assert late["labels"] == {**prompt["labels"], **TRACKING}
    assert late["annotations"] == prompt["annotations"]


async def test_edge_19_subdomain_of_a_reserved_prefix_is_not_reserved(world: World) -> None:
    labels = {"foo.agents.x-k8s.io/x": "1"}
    await world.sandbox(podTemplate=pod_template(labels=labels))
    assert (await world.get(POD))["metadata"]["labels"] == {**TRACKING, **labels}


async def test_edge_20_claimed_volumes_replace_those_of_the_same_name_and_come_last(world: World) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    given: list[Object] = [{"name": name, "emptyDir": {}} for name in ("first", "data", "last")]
    await world.sandbox(
        podTemplate=pod_template(spec={"volumes": given}),
        volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": spec}],
    )
    assert (await world.get(POD))["spec"]["volumes"] == [
        {"name": "first", "emptyDir": {}},
        {"name": "last", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-box"}},
    ]
    assert await world.exists(PERSISTENT_VOLUME_CLAIM, "data-box")


def _writes(request: Request, path: str) -> bool:
    return request.method == "POST" and request.path.endswith(path)
