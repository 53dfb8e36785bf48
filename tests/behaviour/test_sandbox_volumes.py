"""The PersistentVolumeClaims of a sandbox."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX
from sandpool.api.labels import ADOPTABLE, SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.kube.client import JsonPatch
from sandpool.kube.errors import Invalid
from sandpool.node.simulated import Fate
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference

CLAIM: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
HASH = name_hash("box")


def volume(name: str, **metadata: object) -> Object:
    return {"metadata": {"name": name, **metadata}, "spec": CLAIM}


async def test_volume_claims_are_created_before_the_pod_in_template_order(world: World) -> None:
    """Name, labels of the template and the tracking label, annotations, spec, controller, field manager."""
    labels, annotations = {"tier": "data", SANDBOX_NAME_HASH: "not-this"}, {"note": "keep"}
    templates = [volume("data", labels=labels, annotations=annotations), volume("cache")]
    world.written()
    box = await world.sandbox(volumeClaimTemplates=templates)

    assert world.written() == [
        "create persistentvolumeclaims",
        "create persistentvolumeclaims",
        "create pods",
        "patch sandboxes/status",
    ]
    data = await world.get(PERSISTENT_VOLUME_CLAIM, "data-box")
    assert data["metadata"]["labels"] == {"tier": "data", SANDBOX_NAME_HASH: HASH}
    assert data["metadata"]["annotations"] == annotations
    assert data["metadata"]["ownerReferences"] == [owner_reference(box, controller=True, block=True)]
    assert {each["manager"] for each in data["metadata"]["managedFields"]} == {"sandbox-controller"}
    assert CLAIM.items() <= data["spec"].items()
    cache = await world.get(PERSISTENT_VOLUME_CLAIM, "cache-box")
    assert cache["metadata"]["labels"] == {SANDBOX_NAME_HASH: HASH}


async def test_pod_mounts_its_volume_claims(world: World) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    spec = {"containers": [{"name": "main", "image": "example.com/image:1", "volumeMounts": mounts}]}
    await world.sandbox(podTemplate=pod_template(spec=spec), volumeClaimTemplates=[volume("data")])
    pod = await world.get(POD)
    assert pod["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data-box"}}]


async def test_volume_claims_are_created_and_kept_while_suspended(world: World) -> None:
    await world.sandbox(volumeClaimTemplates=[volume("data")], operatingMode="Suspended")
    first = await world.get(PERSISTENT_VOLUME_CLAIM, "data-box")
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Running"}})
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})
    assert not await world.exists(POD)
    assert (await world.get(PERSISTENT_VOLUME_CLAIM, "data-box"))["metadata"]["uid"] == first["metadata"]["uid"]


async def test_existing_volume_claim_is_not_changed(world: World) -> None:
    """Its spec is never reconciled, nor are its labels."""
    await world.sandbox(volumeClaimTemplates=[volume("data")])
    await world.patch(PERSISTENT_VOLUME_CLAIM, "data-box", {"metadata": {"labels": {SANDBOX_NAME_HASH: None}}})
    world.written()
    await world.patch(SANDBOX, "box", {"metadata": {"labels": {"look": "again"}}})
    await world.wait(60)
    assert world.written() == []


@pytest.mark.parametrize("label", [{ADOPTABLE: "true"}, {SANDBOX_NAME_HASH: HASH}], ids=["adoptable", "tracking"])
async def test_adoptable_volume_claim_is_adopted_and_keeps_its_labels(world: World, label: dict[str, str]) -> None:
    await world.create(PERSISTENT_VOLUME_CLAIM, "data-box", metadata={"labels": label}, spec=CLAIM)
    box = await world.sandbox(volumeClaimTemplates=[volume("data", labels={"tier": "data"})])
    adopted = await world.get(PERSISTENT_VOLUME_CLAIM, "data-box")
    assert adopted["metadata"]["ownerReferences"] == [owner_reference(box, controller=True, block=True)]
    assert adopted["metadata"]["labels"] == label
    assert (await world.conditions())["Ready"][0] == "True"


async def test_unowned_volume_claim_without_the_labels_is_refused(world: World) -> None:
    """The pod is still reconciled; volume claim templates after the refused one are not."""
    await world.create(PERSISTENT_VOLUME_CLAIM, "data-box", spec=CLAIM)
    await world.sandbox(volumeClaimTemplates=[volume("first"), volume("data"), volume("last")])
    assert (await world.conditions())["Ready"] == (
        "False",
        "ReconcilerError",
        'Error seen: cannot adopt unowned PVC "data-box" for sandbox "box": it has no label '
        'agents.x-k8s.io/adoptable="true"',
    )
    assert await world.exists(POD)
    assert await world.exists(PERSISTENT_VOLUME_CLAIM, "first-box")
    assert not await world.exists(PERSISTENT_VOLUME_CLAIM, "last-box")
    assert "ownerReferences" not in (await world.get(PERSISTENT_VOLUME_CLAIM, "data-box"))["metadata"]

    await world.patch(PERSISTENT_VOLUME_CLAIM, "data-box", {"metadata": {"labels": {ADOPTABLE: "true"}}})
    await world.wait(10)
    assert (await world.conditions())["Ready"] == ("True", "DependenciesReady", "Pod is Ready")
    assert await world.exists(PERSISTENT_VOLUME_CLAIM, "last-box")


async def test_foreign_volume_claim_is_refused(world: World) -> None:
    owner = await world.create(CONFIG_MAP, "another")
    references = [owner_reference(owner, controller=True)]
    metadata = {"ownerReferences": references, "labels": {ADOPTABLE: "true", SANDBOX_NAME_HASH: HASH}}
    await world.create(PERSISTENT_VOLUME_CLAIM, "data-box", metadata=metadata, spec=CLAIM)
    await world.sandbox(volumeClaimTemplates=[volume("data")])
    assert (await world.conditions())["Ready"] == (
        "False",
        "ReconcilerError",
        f'Error seen: PVC "data-box" is owned by ConfigMap/another (UID: {owner["metadata"]["uid"]}), '
        'not by sandbox "box"',
    )
    assert (await world.get(PERSISTENT_VOLUME_CLAIM, "data-box"))["metadata"]["ownerReferences"] == references


async def test_errors_of_all_steps_are_reported_together(world: World) -> None:
    """A failing step does not stop the others, and their messages are joined."""
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.create(PERSISTENT_VOLUME_CLAIM, "data-box", spec=CLAIM)
    await world.create(POD, "box", spec=pod_template()["spec"])
    await world.sandbox(volumeClaimTemplates=[volume("data")], service=True)
    lacks = 'it has no label agents.x-k8s.io/adoptable="true"'
    assert (await world.conditions())["Ready"] == (
        "False",
        "ReconcilerError",
        f'Error seen: cannot adopt unowned PVC "data-box" for sandbox "box": {lacks}\n'
        f'cannot adopt unowned pod "box" for sandbox "box": {lacks}',
    )
    assert (await world.get())["status"]["service"] == "box"


async def test_volume_claim_templates_of_a_sandbox_are_immutable(world: World) -> None:
    await world.sandbox(volumeClaimTemplates=[volume("data")])
    for operations in (
        [{"op": "add", "path": "/spec/volumeClaimTemplates/-", "value": volume("more")}],
        [{"op": "remove", "path": "/spec/volumeClaimTemplates"}],
    ):
        with pytest.raises(Invalid, match="volumeClaimTemplates is immutable"):
            await world.client.patch(SANDBOX, "box", JsonPatch(operations), world.namespace)


@pytest.mark.backends("inprocess", "http")
async def test_deleted_volume_claim_is_created_again(world: World) -> None:
    """The controller watches the volume claims of its sandboxes and needs no other event.

    Kubernetes keeps a deleted claim until its protection finalizer is removed, later than the world settles.
    """
    await world.sandbox(volumeClaimTemplates=[volume("data")], operatingMode="Suspended")
    first = await world.get(PERSISTENT_VOLUME_CLAIM, "data-box")
    await world.delete(PERSISTENT_VOLUME_CLAIM, "data-box")
    await world.settle()
    second = await world.get(PERSISTENT_VOLUME_CLAIM, "data-box")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
