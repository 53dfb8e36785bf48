"""The pod of a sandbox: its own, or an adoptable one, and never a foreign one."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD, SANDBOX
from sandpool.api.labels import ADOPTABLE, POD_NAME, SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import SharedObject
from sandpool.kube.client import MergePatch
from sandpool.kube.transport import Request
from sandpool.node.simulated import Fate
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import pod_template
from sandpool.testing.waiting import until
from sandpool.testing.world import World, owner_of
from tests.support.api_objects import owner_reference

HASH = name_hash("box")
READY = ("True", "DependenciesReady", "Pod is Ready")


async def pod(world: World, name: str = "box", **metadata: Any) -> SharedObject:
    return await world.create(POD, name, metadata=metadata, spec=pod_template()["spec"])


async def names(world: World) -> list[str]:
    return sorted(each["metadata"]["name"] for each in await world.all(POD))


async def annotation(world: World) -> str | None:
    found: str | None = (await world.get())["metadata"].get("annotations", {}).get(POD_NAME)
    return found


async def test_unowned_pod_without_the_labels_is_refused(world: World) -> None:
    """The sandbox retries, and creates its pod when the other one is gone."""
    await pod(world)
    await world.sandbox()
    assert await world.conditions() == {
        "Suspended": ("False", "NotSuspended", "Sandbox is not suspended"),
        "PodScheduled": (
            "Unknown",
            "PodSchedulingUnknown",
            "Pod state is unknown. Pod scheduling cannot be determined",
        ),
        "Ready": (
            "False",
            "ReconcilerError",
            'Error seen: cannot adopt unowned pod "box" for sandbox "box": it has no label '
            'agents.x-k8s.io/adoptable="true"',
        ),
    }
    assert owner_of(await world.get(POD)) == ("", "")
    await world.delete(POD, "box")
    await world.wait(10)
    assert owner_of(await world.get(POD)) == ("Sandbox", "box")
    assert (await world.conditions())["Ready"] == READY


async def test_foreign_pod_is_refused(world: World) -> None:
    owner = await world.create(CONFIG_MAP, "another")
    references = [owner_reference(owner, controller=True)]
    labels = {ADOPTABLE: "true", SANDBOX_NAME_HASH: HASH}
    await pod(world, ownerReferences=references, labels=labels)
    await world.sandbox()
    uid = owner["metadata"]["uid"]
    assert (await world.conditions())["Ready"] == (
        "False",
        "ReconcilerError",
        f'Error seen: pod "box" is owned by ConfigMap/another (UID: {uid}), not by sandbox "box"',
    )
    found = await world.get(POD)
    assert (found["metadata"]["ownerReferences"], found["metadata"]["labels"]) == (references, labels)
    assert await names(world) == ["box"]


async def test_annotation_of_a_foreign_pod_is_removed_and_a_pod_created(world: World) -> None:
    owner = await world.create(CONFIG_MAP, "another")
    await pod(world, "theirs", ownerReferences=[owner_reference(owner, controller=True)])
    await world.sandbox(metadata={"annotations": {POD_NAME: "theirs"}})
    await world.wait(10)
    assert await annotation(world) is None
    assert (await world.conditions())["Ready"] == READY
    assert owner_of(await world.get(POD)) == ("Sandbox", "box")
    assert owner_of(await world.get(POD, "theirs")) == ("ConfigMap", "another")


@pytest.mark.parametrize("label", [{ADOPTABLE: "true"}, {SANDBOX_NAME_HASH: HASH}], ids=["adoptable", "tracking"])
@pytest.mark.parametrize("name", ["box", "prepared"])
async def test_adoptable_pod_is_adopted_in_one_write(world: World, name: str, label: dict[str, str]) -> None:
    """One patch writes owner and metadata. The pod is found by name or by annotation."""
    await pod(world, name, labels={**label, "mine": "1"})
    world.written()
    annotations = {} if name == "box" else {POD_NAME: name}
    box = await world.sandbox(podTemplate=pod_template(labels={"color": "red"}), metadata={"annotations": annotations})
    assert world.written() == ["patch pods", "patch sandboxes/status"]
    adopted = (await world.get(POD, name))["metadata"]
    assert adopted["ownerReferences"] == [owner_reference(box, controller=True, block=True)]
    assert adopted["labels"] == {**label, SANDBOX_NAME_HASH: HASH, "mine": "1", "color": "red"}
    assert (await world.conditions())["Ready"] == READY
    assert await names(world) == [name]


async def test_other_owners_of_an_adopted_pod_are_kept(world: World) -> None:
    other = await world.create(CONFIG_MAP, "witness")
    reference = owner_reference(other)
    await pod(world, labels={ADOPTABLE: "true"}, ownerReferences=[reference])
    box = await world.sandbox()
    references = (await world.get(POD))["metadata"]["ownerReferences"]
    assert references == [reference, owner_reference(box, controller=True, block=True)]


async def test_annotation_of_a_missing_pod_is_removed_and_a_pod_created(world: World) -> None:
    await world.sandbox(metadata={"annotations": {POD_NAME: "nowhere"}})
    assert await annotation(world) is None
    assert await names(world) == ["box"]
    assert (await world.conditions())["Ready"] == READY


async def test_owned_pod_wins_over_the_annotated_one(world: World) -> None:
    await world.sandbox()
    await pod(world, "prepared", labels={ADOPTABLE: "true"})
    await world.patch(SANDBOX, "box", {"metadata": {"annotations": {POD_NAME: "prepared"}}})
    assert await annotation(world) is None
    assert owner_of(await world.get(POD, "prepared")) == ("", "")
    assert (await world.conditions())["Ready"] == READY


async def test_spec_of_a_pod_is_never_changed(world: World) -> None:
    """A new pod template applies to the next pod."""
    await world.sandbox()
    before = await world.get(POD)
    container = {"name": "main", "image": "example.com/image:2"}
    await world.patch(SANDBOX, "box", {"spec": {"podTemplate": {"spec": {"containers": [container]}}}})
    assert (await world.get(POD))["spec"] == before["spec"]
    await world.delete(POD, "box")
    assert (await world.get(POD))["spec"]["containers"][0]["image"] == "example.com/image:2"


async def test_two_pods_are_reported_once_and_left_alone(world: World) -> None:
    box = await world.sandbox()
    await pod(world, "second", ownerReferences=[owner_reference(box, controller=True)])
    message = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod"
    assert (await world.conditions())["Ready"] == ("False", "MultiplePods", message)
    await world.patch(SANDBOX, "box", {"metadata": {"labels": {"look": "again"}}})
    await world.wait(600)
    (event,) = await world.events("box")
    assert (event["type"], event["reason"], event["action"], event["note"]) == (
        "Warning",
        "MultiplePods",
        "Reconciling",
        message,
    )
    assert event["reportingController"] == "sandbox-controller"
    assert event["regarding"]["uid"] == box["metadata"]["uid"]
    assert await names(world) == ["box", "second"]
    assert world.controllers.sandboxes.controller.failures == 0, "it is not tried again: an event will wake it"

    await world.delete(POD, "second")
    assert (await world.conditions())["Ready"] == READY


async def test_lost_response_creates_no_second_pod(world: World) -> None:
    faults = iter([Fault.LOSE])
    world.wire.fault = lambda request: next(faults, None) if _makes_a_pod(request) else None
    await world.sandbox()
    await world.wait(10)
    assert await names(world) == ["box"]
    assert (await world.conditions())["Ready"] == READY


async def test_pod_missing_from_the_cache_is_found_by_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The create is answered by 409, and the existing pod is used."""
    box = await world.sandbox(operatingMode="Suspended")
    with monkeypatch.context() as patching:
        patching.setattr(world.controllers.caches.pods, "observe", lambda pod: None)
        metadata = {"labels": {SANDBOX_NAME_HASH: HASH}, "ownerReferences": [owner_reference(box, controller=True)]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box", **metadata}, **pod_template()}
        made = await world.client.create(POD, body, world.namespace)
        patch = {"spec": {"operatingMode": "Running"}}
        await world.client.patch(SANDBOX, "box", MergePatch(patch), world.namespace)
        await until(lambda: _taken_in(world))
    assert [each["metadata"]["uid"] for each in await world.all(POD)] == [made["metadata"]["uid"]]
    assert len([each for each in world.wire.requests if _makes_a_pod(each)]) == 1
    assert world.controllers.sandboxes.controller.failures == 0


async def test_failed_pod_creation_is_an_error_and_retried(world: World) -> None:
    world.wire.fault = lambda request: ConnectionError("no route") if _makes_a_pod(request) else None
    await world.sandbox()
    told = await world.conditions()
    assert told["Ready"] == ("False", "ReconcilerError", "Error seen: no route")
    assert told["PodScheduled"][0] == "Unknown"
    world.wire.heal()
    await world.wait(10)
    assert (await world.conditions())["Ready"] == READY


async def test_pod_that_never_becomes_ready_is_left_alone(world: World) -> None:
    world.node.fate = lambda pod: Fate.HANGING
    await world.sandbox()
    uid = (await world.get(POD))["metadata"]["uid"]
    await world.wait(3600)
    assert (await world.get(POD))["metadata"]["uid"] == uid
    assert (await world.conditions())["Ready"] == ("False", "DependenciesNotReady", "Pod is Running but not Ready")


def _makes_a_pod(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/pods")


async def _taken_in(world: World) -> bool:
    return len(world.controllers.caches.pods) == 1
