from __future__ import annotations

from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, SANDBOX
from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, VolumeClaimView, controller_reference
from sandpool.controllers.sandbox.volumes import VolumesPlan, plan_volumes, pod_volumes, volume_claim_names
from sandpool.controllers.writer import Create, Patch
from tests.support import sandbox_objects

HASH = "agents.x-k8s.io/sandbox-name-hash"
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def box(*templates: Object) -> Object:
    return sandbox_objects.sandbox("my-sandbox", spec={"volumeClaimTemplates": list(templates)})


def volume(name: str, **metadata: object) -> Object:
    return {"metadata": {"name": name, **metadata}, "spec": SPEC}


def planned(sandbox: Object, *existing: Object) -> VolumesPlan:
    views = [VolumeClaimView.from_object(each) for each in existing]
    return plan_volumes(SandboxView.from_object(sandbox), {view.name: view for view in views})


def created(plan: VolumesPlan) -> list[str]:
    return [write.object["metadata"]["name"] for write in plan.writes if isinstance(write, Create)]


def test_missing_volume_claim_is_created_from_its_template() -> None:
    sandbox = box(volume("data", labels={"tier": "db", HASH: "forged"}, annotations={"note": "1"}))
    view = SandboxView.from_object(sandbox)
    assert planned(sandbox) == VolumesPlan(
        (
            Create(
                PERSISTENT_VOLUME_CLAIM,
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": "data-my-sandbox",
                        "namespace": "default",
                        "labels": {"tier": "db", HASH: "374de8f5"},
                        "annotations": {"note": "1"},
                        "ownerReferences": [controller_reference(SANDBOX, view)],
                    },
                    "spec": SPEC,
                },
            ),
        )
    )


def test_volume_claim_without_annotations_has_no_field_for_them() -> None:
    (write,) = planned(box(volume("data"))).writes
    assert isinstance(write, Create)
    assert "annotations" not in write.object["metadata"]


def test_own_volume_claim_is_never_changed() -> None:
    sandbox = box(volume("data"))
    claim = sandbox_objects.sandbox_volume_claim(
        sandbox, "data", spec={"storageClassName": "other"}, metadata={"labels": {}}
    )
    assert planned(sandbox, claim) == VolumesPlan()


def test_adoptable_volume_claim_is_adopted_and_keeps_its_labels() -> None:
    sandbox = box(volume("data"))
    bystander = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    prepared = sandbox_objects.sandbox_volume_claim(
        sandbox,
        "data",
        metadata={"labels": {"agents.x-k8s.io/adoptable": "true"}, "ownerReferences": [bystander]},
    )
    references = [bystander, controller_reference(SANDBOX, SandboxView.from_object(sandbox))]
    assert planned(sandbox, prepared) == VolumesPlan(
        (
            Patch(
                PERSISTENT_VOLUME_CLAIM,
                "data-my-sandbox",
                {"metadata": {"resourceVersion": "1", "ownerReferences": references}},
            ),
        )
    )


def test_first_refused_volume_claim_ends_the_step() -> None:
    sandbox = box(volume("a"), volume("b"), volume("c"))
    foreign = sandbox_objects.sandbox_volume_claim(sandbox_objects.sandbox("other"), "b")
    foreign["metadata"]["name"] = "b-my-sandbox"
    plan = planned(sandbox, foreign)
    assert created(plan) == ["a-my-sandbox"]
    assert plan.error == (
        'PVC "b-my-sandbox" is owned by Sandbox/other (UID: sandbox-other), not by sandbox "my-sandbox"'
    )


def test_volume_claims_are_created_while_suspended() -> None:
    sandbox = sandbox_objects.sandbox(
        "my-sandbox", spec={"operatingMode": "Suspended", "volumeClaimTemplates": [volume("data")]}
    )
    assert created(planned(sandbox)) == ["data-my-sandbox"]


def test_pod_volumes_refer_to_the_volume_claims_by_name() -> None:
    view = SandboxView.from_object(box(volume("b"), volume("a")))
    assert volume_claim_names(view) == ["b-my-sandbox", "a-my-sandbox"]
    assert pod_volumes(view) == [
        {"name": "b", "persistentVolumeClaim": {"claimName": "b-my-sandbox"}},
        {"name": "a", "persistentVolumeClaim": {"claimName": "a-my-sandbox"}},
    ]
