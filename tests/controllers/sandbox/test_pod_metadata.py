from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import is_reserved_annotation, is_reserved_label
from sandpool.api.resource import Object, ResourceType
from sandpool.api.views import PodView, SandboxView, controller_reference
from sandpool.controllers.sandbox.pod_metadata import metadata_patch, new_metadata
from sandpool.kube.patches import merge_patch
from sandpool.testing.objects import pod_template
from tests.support import sandbox_objects
from tests.support.sandbox_objects import stored

PREFIX = "agents.x-k8s.io/"
HASH = PREFIX + "sandbox-name-hash"
POOL = PREFIX + "warm-pool-sandbox"
TEMPLATE = PREFIX + "sandbox-template-ref-hash"
CREATED_BY = PREFIX + "created-by"
LABELS = PREFIX + "propagated-labels"
ANNOTATIONS = PREFIX + "propagated-annotations"
EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
TRACKED = {HASH: "374de8f5"}


def box(
    author_labels: dict[str, str] | None = None,
    author_annotations: dict[str, str] | None = None,
    *,
    owner: ResourceType | None = None,
    **labels: str,
) -> Object:
    template = pod_template(labels=author_labels or {}, annotations=author_annotations or {})
    return sandbox_objects.sandbox(
        "my-sandbox",
        spec={"podTemplate": template},
        owner=None if owner is None else stored(owner, "owner"),
        metadata={"labels": {PREFIX + name.replace("_", "-"): value for name, value in labels.items()}},
    )


def new(sandbox: Object) -> Object:
    return new_metadata(SandboxView.from_object(sandbox))


def patch(sandbox: Object, labels: dict[str, str] | None = None, **annotations: str) -> Any:
    """The patch for a pod with the tracking label and these others."""
    pod = sandbox_objects.sandbox_pod(
        sandbox,
        metadata={
            "labels": {**TRACKED, **(labels or {})},
            "annotations": {PREFIX + name.replace("_", "-"): value for name, value in annotations.items()},
        },
    )
    return metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox))


def test_a_new_pod_gets_what_the_template_says_and_a_list_of_it() -> None:
    sandbox = box({"b": "2", "a": "1"}, {"note": "3"})
    assert new(sandbox) == {
        "name": "my-sandbox",
        "namespace": "default",
        "labels": {"a": "1", "b": "2", HASH: "374de8f5"},
        "annotations": {"note": "3", LABELS: "a,b", ANNOTATIONS: "note"},
        "ownerReferences": [controller_reference(SANDBOX, SandboxView.from_object(sandbox))],
    }


def test_a_new_pod_has_no_empty_lists() -> None:
    metadata = new(box())
    assert metadata["labels"] == TRACKED
    assert "annotations" not in metadata


def test_edge_13_an_author_cannot_set_reserved_keys() -> None:
    reserved = {HASH: "x", POOL: "x", "extensions.agents.x-k8s.io/y": "x", PREFIX + "claim-uid": "x"}
    metadata = new(box({**reserved, "a": "1"}, {**reserved, "opentelemetry.io/trace-context": "{}", "b": "2"}))
    assert metadata["labels"] == {"a": "1", **TRACKED}
    assert metadata["annotations"] == {"b": "2", LABELS: "a", ANNOTATIONS: "b"}


def test_edge_19_a_subdomain_of_a_reserved_prefix_is_not_reserved() -> None:
    metadata = new(box({"foo.agents.x-k8s.io/x": "1"}))
    assert metadata["labels"]["foo.agents.x-k8s.io/x"] == "1"


def test_a_pod_of_a_pool_shows_pool_template_and_creator() -> None:
    sandbox = box(
        owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p", sandbox_template_ref_hash="t", created_by="controller"
    )
    assert new(sandbox)["labels"] == {**TRACKED, POOL: "p", TEMPLATE: "t", CREATED_BY: "controller"}


def evictable(owner: ResourceType | None, author: dict[str, str] | None = None) -> Object:
    """A sandbox whose metadata say that its pod may be evicted."""
    sandbox = box(author_annotations=author, owner=owner)
    sandbox["metadata"]["annotations"] = {EVICT: "true"}
    return sandbox


def test_a_pool_lets_its_pods_be_evicted_unless_their_author_says_otherwise() -> None:
    assert new(evictable(SANDBOX_WARM_POOL))["annotations"] == {EVICT: "true", ANNOTATIONS: EVICT}
    assert new(evictable(SANDBOX_WARM_POOL, {EVICT: "false"}))["annotations"] == {EVICT: "false", ANNOTATIONS: EVICT}


@pytest.mark.parametrize("owner", [None, SANDBOX_CLAIM])
def test_nobody_else_does(owner: ResourceType | None) -> None:
    assert "annotations" not in new(evictable(owner))


def test_a_pod_may_not_be_evicted_any_more_when_its_sandbox_is_claimed() -> None:
    pooled = new(evictable(SANDBOX_WARM_POOL))
    claimed = box(owner=SANDBOX_CLAIM)
    pod = sandbox_objects.sandbox_pod(claimed, metadata={"labels": TRACKED, "annotations": pooled["annotations"]})
    body = metadata_patch(PodView.from_object(pod), SandboxView.from_object(claimed))
    assert body == {"metadata": {"annotations": {EVICT: None, ANNOTATIONS: ""}}}


def test_a_pod_of_a_claim_shows_no_pool() -> None:
    sandbox = box(owner=SANDBOX_CLAIM, warm_pool_sandbox="p", sandbox_template_ref_hash="t", claim_uid="u")
    assert new(sandbox)["labels"] == {**TRACKED, TEMPLATE: "t"}


@pytest.mark.parametrize("owner", [None, SANDBOX])
def test_edge_14_labels_of_a_sandbox_that_no_pool_or_claim_owns_are_not_believed(owner: ResourceType | None) -> None:
    sandbox = box(owner=owner, warm_pool_sandbox="p", sandbox_template_ref_hash="t")
    assert new(sandbox)["labels"] == TRACKED


def test_edge_14_they_go_from_the_pod_when_the_sandbox_leaves_its_pool() -> None:
    claimed = box(owner=SANDBOX_CLAIM, sandbox_template_ref_hash="t")
    assert patch(claimed, {POOL: "p", TEMPLATE: "t"}) == {"metadata": {"labels": {POOL: None}}}
    alone = box(warm_pool_sandbox="p", sandbox_template_ref_hash="t")
    assert patch(alone, {POOL: "p", TEMPLATE: "t"}) == {"metadata": {"labels": {POOL: None, TEMPLATE: None}}}


def test_owners_are_recognised_whatever_their_version() -> None:
    sandbox = box(owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p")
    reference = sandbox["metadata"]["ownerReferences"][0]
    reference["apiVersion"] = "extensions.agents.x-k8s.io/v1alpha1"
    assert new(sandbox)["labels"] == {**TRACKED, POOL: "p"}


@pytest.mark.parametrize(
    ("creator", "shown"), [("go-client", "go-client"), ("python-client", "python-client"), ("curl", "unknown")]
)
def test_only_known_creators_have_a_name(creator: str, shown: str) -> None:
    assert new(box(created_by=creator))["labels"][CREATED_BY] == shown


def test_a_creator_that_is_gone_goes_from_the_pod() -> None:
    assert patch(box(created_by=""), {CREATED_BY: "controller"}) == {"metadata": {"labels": {CREATED_BY: None}}}


def test_a_pod_that_is_up_to_date_is_not_patched() -> None:
    assert patch(box()) is None
    sandbox = box({"a": "1"}, {"note": "2"}, owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p")
    pod = sandbox_objects.sandbox_pod(sandbox, metadata=new(sandbox))
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) is None


def test_what_the_author_added_or_changed_is_patched() -> None:
    assert patch(box({"a": "2", "b": "3"}), {"a": "1"}, propagated_labels="a") == {
        "metadata": {"labels": {"a": "2", "b": "3"}, "annotations": {LABELS: "a,b"}}
    }


def test_what_the_author_removed_is_removed_and_the_list_stays_empty() -> None:
    assert patch(box(), {"a": "1", "mine": "2"}, propagated_labels="a") == {
        "metadata": {"labels": {"a": None}, "annotations": {LABELS: ""}}
    }
    assert patch(box(), {"mine": "2"}, propagated_labels="") is None


def test_annotations_are_treated_the_same() -> None:
    sandbox = box({}, {"b": "2"})
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"annotations": {"a": "1", "mine": "3", ANNOTATIONS: "a"}})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"annotations": {"a": None, "b": "2", ANNOTATIONS: "b"}}
    }


def test_edge_13_reserved_keys_that_were_once_propagated_are_scrubbed() -> None:
    stale = {PREFIX + "claim-uid": "u", PREFIX + "unrelated": "left alone"}
    listed = f"{PREFIX}claim-uid,{HASH}"
    assert patch(box(), stale, propagated_labels=listed) == {
        "metadata": {"labels": {PREFIX + "claim-uid": None}, "annotations": {LABELS: ""}}
    }


def test_edge_13_reserved_annotations_are_scrubbed_except_our_lists() -> None:
    sandbox = box()
    annotations = {
        "opentelemetry.io/trace-context": "{}",
        LABELS: "",
        ANNOTATIONS: f"{LABELS},{ANNOTATIONS},opentelemetry.io/trace-context",
    }
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"annotations": annotations})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"annotations": {"opentelemetry.io/trace-context": None, ANNOTATIONS: ""}}
    }


def test_a_lost_tracking_label_is_restored() -> None:
    sandbox = box()
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"labels": {}})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"labels": TRACKED}
    }


def test_edge_12_adoption_with_the_right_labels_still_writes_the_owner() -> None:
    sandbox = box()
    bystander = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"ownerReferences": [bystander]})
    view = SandboxView.from_object(sandbox)
    assert metadata_patch(PodView.from_object(pod), view) == {
        "metadata": {"resourceVersion": "1", "ownerReferences": [bystander, controller_reference(SANDBOX, view)]}
    }


KEYS = st.sampled_from(["a", "b", HASH, POOL, PREFIX + "claim-uid", "extensions.agents.x-k8s.io/z", LABELS])
METADATA = st.dictionaries(KEYS, st.sampled_from(["1", "2"]), max_size=4)


@given(METADATA, METADATA, METADATA, METADATA, st.lists(KEYS, max_size=4))
def test_one_patch_is_enough_and_leaves_no_trace_of_the_author_but_what_is_wanted(
    author_labels: dict[str, str],
    author_annotations: dict[str, str],
    labels: dict[str, str],
    annotations: dict[str, str],
    listed: list[str],
) -> None:
    sandbox = box(author_labels, author_annotations)
    pod = sandbox_objects.sandbox_pod(
        sandbox, metadata={"labels": labels, "annotations": {**annotations, LABELS: ",".join(listed)}}
    )
    view = SandboxView.from_object(sandbox)
    body = metadata_patch(PodView.from_object(pod), view)
    patched = PodView.from_object(merge_patch(pod, body) if body is not None else pod)
    assert metadata_patch(patched, view) is None
    assert patched.labels[HASH] == "374de8f5"
    for key, value in author_labels.items():
        assert is_reserved_label(key) or patched.labels[key] == value
    for key, value in author_annotations.items():
        assert is_reserved_annotation(key) or patched.annotations[key] == value
    for key in listed:
        assert key == HASH or key in author_labels or key not in patched.labels
