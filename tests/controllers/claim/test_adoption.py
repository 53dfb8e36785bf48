"""The patches that adopt a sandbox and keep it up to date."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView, TemplateView
from sandpool.controllers.claim.adoption import adoption_patch, sync_patch
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.revision import TemplateRevision
from sandpool.kube.patches import merge_patch
from sandpool.testing.objects import pod_template
from tests.support.claim_objects import claim, pool_member, warm_pool
from tests.support.sandbox_objects import sandbox, template

BRINGS_LABELS = {"additionalPodMetadata": {"labels": {"sandbox.users.io/a": "b"}}}
POOL_POD_LABELS = {
    labels.WARM_POOL: "91dd7983",
    labels.TEMPLATE_REF_HASH: "x",
    labels.TEMPLATE_HASH: "y",
    labels.CREATED_BY: "controller",
}


def view(**fields: Any) -> ClaimView:
    return ClaimView.from_object(claim(**fields))


def revision(**pod_metadata: Any) -> TemplateRevision:
    return TemplateRevision.of(TemplateView.from_object(template(spec={"podTemplate": pod_template(**pod_metadata)})))


def member(**pod_metadata: Any) -> Object:
    return pool_member(pool=warm_pool(), spec={"podTemplate": pod_template(**pod_metadata)})


def adopted(view: ClaimView, box: Object, made_from: TemplateRevision | None, **options: Any) -> tuple[Object, Object]:
    """The patch, and the sandbox after it."""
    body = adoption_patch(view, SandboxView.from_object(box), made_from, **options)
    return body, merge_patch(box, body)


def test_patch_has_the_resource_version_that_was_read() -> None:
    body, _ = adopted(view(), member(), revision())
    assert body["metadata"]["resourceVersion"] == "1"


def test_claim_becomes_the_only_owner() -> None:
    box = member()
    box["metadata"]["ownerReferences"].append({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"})
    _, after = adopted(view(), box, revision())
    assert after["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxClaim",
            "name": "claim",
            "uid": "sandboxclaim-claim",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_pool_labels_are_replaced_by_claim_labels() -> None:
    _, after = adopted(view(), member(), revision())
    assert after["metadata"]["labels"] == {
        labels.TEMPLATE_REF_HASH: revision().ref_hash,
        labels.LAUNCH_TYPE: "warm",
        labels.CLAIM_UID: "sandboxclaim-claim",
    }


def test_annotations_are_kept() -> None:
    body, after = adopted(view(), member(), revision())
    assert after["metadata"]["annotations"] == {labels.TEMPLATE_REF: "python", labels.POD_NAME: "pool-abcde"}
    assert "annotations" not in body["metadata"]


def test_pod_name_is_annotated_if_missing() -> None:
    box = member()
    del box["metadata"]["annotations"][labels.POD_NAME]
    _, after = adopted(view(), box, revision())
    assert after["metadata"]["annotations"][labels.POD_NAME] == "pool-abcde"


def test_trace_context_is_annotated() -> None:
    _, after = adopted(view(), member(), revision(), trace_context='{"traceparent":"00-1"}')
    assert after["metadata"]["annotations"][labels.TRACE_CONTEXT] == '{"traceparent":"00-1"}'


def test_claim_identity_does_not_change_the_spec() -> None:
    body, _ = adopted(view(), member(labels=POOL_POD_LABELS), revision())
    assert "spec" not in body
    with_creator = view(metadata={"labels": {labels.CREATED_BY: "python-client"}})
    body, _ = adopted(with_creator, member(labels=POOL_POD_LABELS), revision())
    assert "spec" not in body


def test_pod_metadata_of_the_claim_replace_those_of_the_pool() -> None:
    made_from = revision(labels={"app": "x"}, annotations={"note": "y"})
    box = member(labels={"app": "x", **POOL_POD_LABELS}, annotations={"note": "y", labels.SAFE_TO_EVICT: "true"})
    _, after = adopted(view(spec=BRINGS_LABELS), box, made_from)
    assert after["spec"]["podTemplate"]["metadata"] == {
        "labels": {
            "app": "x",
            "sandbox.users.io/a": "b",
            labels.TEMPLATE_REF_HASH: made_from.ref_hash,
            labels.CLAIM_UID: "sandboxclaim-claim",
        },
        "annotations": {"note": "y"},
    }
    assert after["spec"]["podTemplate"]["spec"] == box["spec"]["podTemplate"]["spec"]


def test_eviction_annotation_of_the_pool_is_removed_from_the_sandbox() -> None:
    box = member(labels=POOL_POD_LABELS)
    box["metadata"]["annotations"][labels.SAFE_TO_EVICT] = "true"
    body, after = adopted(view(), box, revision())
    assert "spec" not in body
    assert labels.SAFE_TO_EVICT not in after["metadata"]["annotations"]


def test_eviction_annotation_of_another_implementation_is_removed_from_the_pod_template() -> None:
    _, after = adopted(view(), member(annotations={labels.SAFE_TO_EVICT: "true"}), revision())
    assert labels.SAFE_TO_EVICT not in after["spec"]["podTemplate"]["metadata"].get("annotations", {})


@pytest.mark.parametrize("value", ["true", "false"])
def test_eviction_annotation_of_the_template_is_kept(value: str) -> None:
    said = {labels.SAFE_TO_EVICT: value}
    body, _ = adopted(view(), member(annotations=said), revision(annotations=said))
    assert "spec" not in body


def test_without_template_only_the_marks_of_the_pool_are_removed() -> None:
    box = member(labels={"app": "x", **POOL_POD_LABELS}, annotations={"note": "y", labels.SAFE_TO_EVICT: "true"})
    _, after = adopted(view(spec=BRINGS_LABELS), box, None)
    assert after["spec"]["podTemplate"]["metadata"] == {
        "labels": {
            "app": "x",
            "sandbox.users.io/a": "b",
            labels.TEMPLATE_REF_HASH: box["metadata"]["labels"][labels.TEMPLATE_REF_HASH],
            labels.CLAIM_UID: "sandboxclaim-claim",
        },
        "annotations": {"note": "y"},
    }


def test_metadata_conflict_is_found_before_any_write() -> None:
    with pytest.raises(ClaimError, match="metadata override conflict"):
        adopted(view(spec=BRINGS_LABELS), member(), revision(labels={"sandbox.users.io/a": "other"}))


def test_e51_creator_is_that_of_the_claim() -> None:
    with_creator = view(metadata={"labels": {labels.CREATED_BY: "my-tool"}})
    _, after = adopted(with_creator, member(), revision())
    assert after["metadata"]["labels"][labels.CREATED_BY] == "my-tool"


def test_e51_claim_without_creator_removes_that_of_the_pool() -> None:
    box = member(labels={"sandbox.users.io/x": "y", **POOL_POD_LABELS})
    _, after = adopted(view(), box, revision())
    assert labels.CREATED_BY not in after["metadata"]["labels"]
    assert labels.CREATED_BY not in after["spec"]["podTemplate"]["metadata"]["labels"]


# --- upkeep ----------------------------------------------------------------------------------------------------------


def bound(**metadata: Any) -> Object:
    identity = {
        labels.TEMPLATE_REF_HASH: revision().ref_hash,
        labels.LAUNCH_TYPE: "warm",
        labels.CLAIM_UID: "sandboxclaim-claim",
    }
    return sandbox("pool-abcde", owner=claim(), metadata={"labels": {**identity, **metadata.pop("labels", {})}})


def kept(view: ClaimView, box: Object, made_from: TemplateRevision | None) -> Object | None:
    return sync_patch(view, SandboxView.from_object(box), made_from)


def test_up_to_date_sandbox_is_not_patched() -> None:
    assert kept(view(), bound(), revision()) is None
    assert kept(view(), bound(), None) is None


def test_adopted_sandbox_is_up_to_date() -> None:
    for spec in ({}, BRINGS_LABELS):
        claimed = view(spec=spec, metadata={"labels": {labels.CREATED_BY: "my-tool"}})
        _, after = adopted(claimed, member(annotations={labels.SAFE_TO_EVICT: "true"}), revision())
        assert kept(claimed, after, revision()) is None


def test_metadata_edits_of_the_template_reach_bound_sandboxes() -> None:
    made_from = revision(labels={"app": "new"})
    assert kept(view(), bound(), made_from) == {
        "metadata": {"uid": "sandbox-pool-abcde"},
        "spec": {
            "podTemplate": {
                "metadata": {
                    "labels": {
                        "app": "new",
                        labels.TEMPLATE_REF_HASH: made_from.ref_hash,
                        labels.CLAIM_UID: "sandboxclaim-claim",
                    }
                }
            }
        },
    }


def test_without_template_the_pod_template_is_unchanged() -> None:
    box = bound()
    box["spec"]["podTemplate"]["metadata"] = {"annotations": {labels.SAFE_TO_EVICT: "true"}}
    assert kept(view(), box, None) is None


def test_sync_patch_names_the_uid_and_no_resource_version() -> None:
    box = bound(labels={labels.CREATED_BY: "controller"})
    assert kept(view(), box, revision()) == {
        "metadata": {"uid": "sandbox-pool-abcde", "labels": {labels.CREATED_BY: None}}
    }


@pytest.mark.parametrize(("name", "launch"), [("pool-abcde", "warm"), ("claim", "cold")])
def test_e48_missing_launch_type_is_added(name: str, launch: str) -> None:
    box = {**bound(), "metadata": {**bound()["metadata"], "name": name}}
    del box["metadata"]["labels"][labels.LAUNCH_TYPE]
    assert kept(view(), box, revision()) == {
        "metadata": {"uid": "sandbox-pool-abcde", "labels": {labels.LAUNCH_TYPE: launch}}
    }


def test_e48_launch_type_is_never_overwritten() -> None:
    assert kept(view(), bound(labels={labels.LAUNCH_TYPE: "cold"}), revision()) is None
