from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import ASLEEP_SINCE, LATE_BOUND, is_reserved_annotation, is_reserved_label
from sandpool.api.names import name_hash
from sandpool.api.resource import Object, ResourceType
from sandpool.api.views import PodView, SandboxView, controller_reference
from sandpool.controllers.sandbox.pod import PodPlan, metadata_patch, new_metadata, new_pod, plan_pod, pod_spec
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.patches import merge_patch
from sandpool.testing.objects import pod_template
from tests.support import sandbox_objects
from tests.support.sandbox_objects import stored

POD_NAME = "agents.x-k8s.io/pod-name"
ADOPTABLE = {"labels": {"agents.x-k8s.io/adoptable": "true"}}
DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
ELSEWHERE = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}
BEFORE = {
    "apiVersion": "agents.x-k8s.io/v1beta1",
    "kind": "Sandbox",
    "name": "box",
    "uid": "before",
    "controller": True,
}


def box(annotation: str | None = None, **spec: Any) -> Object:
    annotations = {} if annotation is None else {"annotations": {POD_NAME: annotation}}
    return sandbox_objects.sandbox("box", spec=spec, metadata=annotations)


def suspended(annotation: str | None = None) -> Object:
    return box(annotation, operatingMode="Suspended")


def own(sandbox: Object, name: str = "box", **metadata: Any) -> Object:
    return sandbox_objects.sandbox_pod(sandbox, name, metadata=metadata)


def foreign(sandbox: Object, name: str = "box", reference: Object = ELSEWHERE) -> Object:
    return own(sandbox, name, ownerReferences=[reference])


def unowned(sandbox: Object, name: str = "box", **metadata: Any) -> Object:
    return own(sandbox, name, ownerReferences=[], **metadata)


def planned(sandbox: Object, *pods: Object) -> PodPlan:
    """The plan for a namespace with these pods. The index finds those of the sandbox, as that of a cache would."""
    view = SandboxView.from_object(sandbox)
    views = [PodView.from_object(pod) for pod in pods]
    children = [pod for pod in views if pod.controlled_by(view)]
    tracked = next((pod for pod in views if pod.name == view.pod_name), None)
    return plan_pod(view, children, tracked)


def pod_of(pod: Object) -> PodView:
    return PodView.from_object(pod)


def repaired(value: str | None) -> Patch:
    return Patch(SANDBOX, "box", {"metadata": {"annotations": {POD_NAME: value}}})


def deletion(pod: Object) -> Delete:
    return Delete(POD, pod["metadata"]["name"], pod["metadata"]["uid"])


# --- no pod ----------------------------------------------------------------------------------------------------------


def test_missing_pod_is_created_with_one_write() -> None:
    sandbox = box()
    assert planned(sandbox) == PodPlan(write=Create(POD, new_pod(SandboxView.from_object(sandbox))))


def test_pod_name_annotation_equal_to_the_sandbox_name_is_kept() -> None:
    """Members of pools are created with it; taking it away and writing it again would be two writes for nothing."""
    assert (planned(box("box")).repair, planned(box("box")).refresh) == (None, "")
    assert planned(suspended("box")).repair is None
    sandbox = box("box")
    assert planned(sandbox, own(sandbox)).repair is None


@pytest.mark.parametrize("annotation", ["gone", ""])
def test_pod_name_annotation_of_a_missing_pod_is_removed_and_the_pod_created(annotation: str) -> None:
    plan = planned(box(annotation))
    assert plan.repair == repaired(None)
    assert plan.refresh == annotation
    assert isinstance(plan.write, Create)
    assert plan.write.object["metadata"]["name"] == "box"


def test_new_pod_has_the_spec_of_the_template() -> None:
    view = SandboxView.from_object(box())
    pod = new_pod(view)
    assert pod["spec"] == pod_spec(view)
    assert (pod["apiVersion"], pod["kind"], pod["metadata"]) == ("v1", "Pod", new_metadata(view))


# --- one pod ---------------------------------------------------------------------------------------------------------


def test_up_to_date_own_pod_needs_no_write() -> None:
    sandbox = box()
    pod = own(sandbox)
    plan = planned(sandbox, pod)
    assert (plan.pod, plan.repair, plan.write, plan.error) == (pod_of(pod), None, None, "")


def test_metadata_of_an_own_pod_are_deferrable() -> None:
    sandbox = box(podTemplate=pod_template(labels={"a": "1"}))
    plan = planned(sandbox, own(sandbox))
    annotations = {"agents.x-k8s.io/propagated-labels": "a"}
    assert plan.write == Patch(POD, "box", {"metadata": {"labels": {"a": "1"}, "annotations": annotations}})
    assert plan.deferrable


def test_spec_of_an_existing_pod_is_never_written() -> None:
    sandbox = box(podTemplate=pod_template(spec={"nodeName": "elsewhere"}))
    assert planned(sandbox, own(sandbox)).write is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pod_is_not_replaced(phase: str) -> None:
    sandbox = box()
    pod = {**own(sandbox), "status": {"phase": phase}}
    assert planned(sandbox, pod).write is None


def test_edge_10_terminating_own_pod_is_awaited() -> None:
    sandbox = box()
    pod = own(sandbox, **DELETING)
    assert planned(sandbox, pod) == PodPlan(pod_of(pod), deferrable=True)


def test_edge_12_unowned_pod_with_the_tracking_label_is_adopted_at_once() -> None:
    sandbox = box()
    plan = planned(sandbox, unowned(sandbox))
    references = [controller_reference(SANDBOX, SandboxView.from_object(sandbox))]
    assert plan.write == Patch(POD, "box", {"metadata": {"resourceVersion": "1", "ownerReferences": references}})
    assert not plan.deferrable


def test_adoptable_pod_of_another_name_is_adopted_by_annotation() -> None:
    sandbox = box("prepared")
    plan = planned(sandbox, unowned(sandbox, "prepared", **ADOPTABLE))
    assert isinstance(plan.write, Patch)
    assert plan.write.name == "prepared"
    assert plan.write.body["metadata"]["labels"] == {"agents.x-k8s.io/sandbox-name-hash": name_hash("box")}
    assert plan.repair is None


def test_r10_unowned_pod_without_the_labels_is_an_error() -> None:
    sandbox = box("prepared")
    assert planned(sandbox, unowned(sandbox, "prepared", labels={})) == PodPlan(
        error=(
            'cannot adopt unowned pod "prepared" for sandbox "box": it has no label agents.x-k8s.io/adoptable="true"'
        )
    )


def test_foreign_pod_is_an_error_and_its_annotation_is_removed() -> None:
    sandbox = box("taken")
    error = 'pod "taken" is owned by ReplicaSet/web (UID: rs-1), not by sandbox "box"'
    assert planned(sandbox, foreign(sandbox, "taken")) == PodPlan(repair=repaired(None), error=error)


def test_edge_09_pod_of_an_earlier_sandbox_of_the_name_is_not_owned() -> None:
    sandbox = box()
    assert planned(sandbox, foreign(sandbox, reference=BEFORE)).error == (
        'pod "box" is owned by Sandbox/box (UID: before), not by sandbox "box"'
    )


def test_edge_09_annotation_is_repaired_to_an_owned_survivor() -> None:
    sandbox = box("gone")
    survivor = own(sandbox, "survivor")
    assert planned(sandbox, survivor) == PodPlan(pod_of(survivor), repair=repaired("survivor"), deferrable=True)
    named_like_it = own(sandbox)
    assert planned(sandbox, named_like_it) == PodPlan(pod_of(named_like_it), repair=repaired(None), deferrable=True)


def test_owned_pod_of_another_name_is_annotated() -> None:
    sandbox = box()
    assert planned(sandbox, own(sandbox, "survivor")).repair == repaired("survivor")


def test_edge_09_owned_pod_wins_over_the_annotated_adoptable_one() -> None:
    sandbox = box("prepared")
    pod = own(sandbox)
    assert planned(sandbox, pod, unowned(sandbox, "prepared", **ADOPTABLE)) == PodPlan(
        pod_of(pod), repair=repaired(None), deferrable=True
    )


@pytest.mark.parametrize("name", ["box", "survivor"])
def test_owned_pod_without_tracking_label_gets_it_back(name: str) -> None:
    sandbox = box()
    pod = own(sandbox, name, labels={})
    plan = planned(sandbox, pod)
    assert plan.pod == pod_of(pod)
    assert plan.write == Patch(
        POD, name, {"metadata": {"labels": {"agents.x-k8s.io/sandbox-name-hash": name_hash("box")}}}
    )


def test_owned_pod_missing_from_the_index_is_used() -> None:
    """A create that is answered by AlreadyExists finds such a pod."""
    sandbox = box()
    pod = pod_of(own(sandbox))
    assert plan_pod(SandboxView.from_object(sandbox), (), pod) == PodPlan(pod, deferrable=True)


# --- several pods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["Running", "Suspended"])
def test_edge_11_two_owned_pods_are_left_alone(mode: str) -> None:
    sandbox = box(operatingMode=mode)
    assert planned(sandbox, own(sandbox), own(sandbox, "twin")) == PodPlan(count=2)


def test_edge_11_second_owned_pod_may_be_missing_from_the_index() -> None:
    sandbox = box("odd")
    known, new = pod_of(own(sandbox)), pod_of(own(sandbox, "odd"))
    assert plan_pod(SandboxView.from_object(sandbox), (known,), new) == PodPlan(count=2)


def test_annotation_of_a_missing_pod_is_removed_with_two_owned_pods() -> None:
    sandbox = box("gone")
    assert planned(sandbox, own(sandbox), own(sandbox, "twin")) == PodPlan(repair=repaired(None), count=2)


# --- suspended -------------------------------------------------------------------------------------------------------


def test_suspending_deletes_the_pod_and_keeps_the_annotation() -> None:
    sandbox = suspended("adopted")
    pod = own(sandbox, "adopted")
    assert planned(sandbox, pod) == PodPlan(pod_of(pod), write=deletion(pod))


def test_terminating_pod_is_not_deleted_again() -> None:
    sandbox = suspended("adopted")
    pod = own(sandbox, "adopted", **DELETING)
    assert planned(sandbox, pod) == PodPlan(pod_of(pod))


def test_suspended_sandbox_without_pod_loses_the_annotation() -> None:
    assert planned(suspended("adopted")) == PodPlan(repair=repaired(None))
    assert planned(suspended()) == PodPlan()


def test_edge_03_foreign_pod_while_suspended_is_no_error_and_survives() -> None:
    sandbox = suspended()
    pod = foreign(sandbox)
    assert planned(sandbox, pod) == PodPlan(pod_of(pod))


@pytest.mark.parametrize("make", [foreign, unowned])
def test_edge_08_unowned_pod_survives_suspension_and_the_annotation_is_removed(make: Any) -> None:
    sandbox = suspended("other")
    pod = make(sandbox, "other")
    assert planned(sandbox, pod) == PodPlan(pod_of(pod), repair=repaired(None))


def test_suspending_deletes_an_owned_pod_of_another_name() -> None:
    sandbox = suspended("gone")
    pod = own(sandbox, "survivor")
    assert planned(sandbox, pod) == PodPlan(pod_of(pod), repair=repaired(None), write=deletion(pod))


# --- whatever there is -----------------------------------------------------------------------------------------------


@st.composite
def situations(draw: st.DrawFn) -> tuple[Object, list[Object]]:
    """A sandbox and pods of all sorts of owners, labels and names around it."""
    mode = draw(st.sampled_from(["Running", "Suspended"]))
    sandbox = box(draw(st.sampled_from([None, "", "box", "other", "gone"])), operatingMode=mode)
    pods = []
    for name in draw(st.sets(st.sampled_from(["box", "other", "third"]))):
        metadata: Object = draw(st.sampled_from([{}, DELETING]))
        labels = draw(st.sampled_from([None, {}, {"agents.x-k8s.io/adoptable": "true"}]))
        owners = draw(st.sampled_from([None, [], [ELSEWHERE], [BEFORE]]))
        labelled = {} if labels is None else {"labels": labels}
        owned = {} if owners is None else {"ownerReferences": owners}
        pods.append(own(sandbox, name, **metadata, **labelled, **owned))
    return sandbox, pods


@given(situations())
def test_r10_only_own_pods_are_deleted_and_only_own_or_adoptable_ones_changed(
    situation: tuple[Object, list[Object]],
) -> None:
    sandbox, pods = situation
    view = SandboxView.from_object(sandbox)
    views = {pod["metadata"]["name"]: pod_of(pod) for pod in pods}
    owned = [pod for pod in views.values() if pod.controlled_by(view)]
    plan = planned(sandbox, *pods)
    if isinstance(plan.write, Delete):
        assert views[plan.write.name].controlled_by(view)
        assert view.suspended
    elif isinstance(plan.write, Patch):
        changed = views[plan.write.name]
        assert changed in owned or (changed.owner is None and not owned)
    elif isinstance(plan.write, Create):
        assert not view.suspended
        assert not owned
    assert not (plan.count and plan.write)
    assert plan.pod is None or plan.pod in views.values()


PREFIX = "agents.x-k8s.io/"
HASH = PREFIX + "sandbox-name-hash"
POOL = PREFIX + "warm-pool-sandbox"
TEMPLATE = PREFIX + "sandbox-template-ref-hash"
CREATED_BY = PREFIX + "created-by"
LABELS = PREFIX + "propagated-labels"
ANNOTATIONS = PREFIX + "propagated-annotations"
EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
TRACKED = {HASH: "374de8f5"}


def labelled_box(
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


def test_new_pod_has_the_metadata_of_the_template_and_lists_their_keys() -> None:
    sandbox = labelled_box({"b": "2", "a": "1"}, {"note": "3"})
    assert new(sandbox) == {
        "name": "my-sandbox",
        "namespace": "default",
        "labels": {"a": "1", "b": "2", HASH: "374de8f5"},
        "annotations": {"note": "3", LABELS: "a,b", ANNOTATIONS: "note"},
        "ownerReferences": [controller_reference(SANDBOX, SandboxView.from_object(sandbox))],
    }


@pytest.mark.parametrize(
    ("owner", "mark", "expected"),
    [(SANDBOX_CLAIM, "true", True), (SANDBOX_CLAIM, "false", False), (SANDBOX_WARM_POOL, "true", False)],
)
def test_new_pod_of_a_late_bound_sandbox_is_marked(owner: ResourceType, mark: str, expected: bool) -> None:
    """A user's mark on a sandbox that no claim has would keep its commands waiting."""
    sandbox = labelled_box(owner=owner)
    sandbox["metadata"]["annotations"] = {LATE_BOUND: mark}
    assert new(sandbox).get("annotations", {}) == ({LATE_BOUND: "true"} if expected else {})


def test_new_pod_has_no_empty_key_lists() -> None:
    metadata = new(labelled_box())
    assert metadata["labels"] == TRACKED
    assert "annotations" not in metadata


def test_edge_13_template_cannot_set_reserved_keys() -> None:
    reserved = {HASH: "x", POOL: "x", "extensions.agents.x-k8s.io/y": "x", PREFIX + "claim-uid": "x"}
    metadata = new(labelled_box({**reserved, "a": "1"}, {**reserved, "opentelemetry.io/trace-context": "{}", "b": "2"}))
    assert metadata["labels"] == {"a": "1", **TRACKED}
    assert metadata["annotations"] == {"b": "2", LABELS: "a", ANNOTATIONS: "b"}


def test_edge_19_subdomain_of_a_reserved_prefix_is_not_reserved() -> None:
    metadata = new(labelled_box({"foo.agents.x-k8s.io/x": "1"}))
    assert metadata["labels"]["foo.agents.x-k8s.io/x"] == "1"


def test_pod_of_a_pool_has_labels_of_pool_template_and_creator() -> None:
    sandbox = labelled_box(
        owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p", sandbox_template_ref_hash="t", created_by="controller"
    )
    assert new(sandbox)["labels"] == {**TRACKED, POOL: "p", TEMPLATE: "t", CREATED_BY: "controller"}


def evictable(owner: ResourceType | None, author: dict[str, str] | None = None) -> Object:
    """A sandbox whose metadata say that its pod may be evicted."""
    sandbox = labelled_box(author_annotations=author, owner=owner)
    sandbox["metadata"]["annotations"] = {EVICT: "true"}
    return sandbox


def test_pool_pod_is_safe_to_evict_unless_the_template_says_otherwise() -> None:
    assert new(evictable(SANDBOX_WARM_POOL))["annotations"] == {EVICT: "true", ANNOTATIONS: EVICT}
    assert new(evictable(SANDBOX_WARM_POOL, {EVICT: "false"}))["annotations"] == {EVICT: "false", ANNOTATIONS: EVICT}


@pytest.mark.parametrize("owner", [None, SANDBOX_CLAIM])
def test_pods_of_other_owners_are_not_marked_safe_to_evict(owner: ResourceType | None) -> None:
    assert "annotations" not in new(evictable(owner))


def test_claiming_the_sandbox_removes_safe_to_evict_from_its_pod() -> None:
    pooled = new(evictable(SANDBOX_WARM_POOL))
    claimed = labelled_box(owner=SANDBOX_CLAIM)
    pod = sandbox_objects.sandbox_pod(claimed, metadata={"labels": TRACKED, "annotations": pooled["annotations"]})
    body = metadata_patch(PodView.from_object(pod), SandboxView.from_object(claimed))
    assert body == {"metadata": {"annotations": {EVICT: None, ANNOTATIONS: ""}}}


def test_pod_of_a_claim_has_no_pool_label() -> None:
    sandbox = labelled_box(owner=SANDBOX_CLAIM, warm_pool_sandbox="p", sandbox_template_ref_hash="t", claim_uid="u")
    assert new(sandbox)["labels"] == {**TRACKED, TEMPLATE: "t"}


@pytest.mark.parametrize("owner", [None, SANDBOX])
def test_edge_14_labels_of_a_standalone_sandbox_are_not_propagated(owner: ResourceType | None) -> None:
    sandbox = labelled_box(owner=owner, warm_pool_sandbox="p", sandbox_template_ref_hash="t")
    assert new(sandbox)["labels"] == TRACKED


def test_edge_14_labels_are_removed_from_the_pod_when_the_sandbox_leaves_its_pool() -> None:
    claimed = labelled_box(owner=SANDBOX_CLAIM, sandbox_template_ref_hash="t")
    assert patch(claimed, {POOL: "p", TEMPLATE: "t"}) == {"metadata": {"labels": {POOL: None}}}
    alone = labelled_box(warm_pool_sandbox="p", sandbox_template_ref_hash="t")
    assert patch(alone, {POOL: "p", TEMPLATE: "t"}) == {"metadata": {"labels": {POOL: None, TEMPLATE: None}}}


def test_owner_kind_is_recognised_in_any_version() -> None:
    sandbox = labelled_box(owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p")
    reference = sandbox["metadata"]["ownerReferences"][0]
    reference["apiVersion"] = "extensions.agents.x-k8s.io/v1alpha1"
    assert new(sandbox)["labels"] == {**TRACKED, POOL: "p"}


@pytest.mark.parametrize(
    ("creator", "shown"), [("go-client", "go-client"), ("python-client", "python-client"), ("curl", "unknown")]
)
def test_only_known_creators_are_labelled(creator: str, shown: str) -> None:
    assert new(labelled_box(created_by=creator))["labels"][CREATED_BY] == shown


def test_removed_creator_is_removed_from_the_pod() -> None:
    assert patch(labelled_box(created_by=""), {CREATED_BY: "controller"}) == {
        "metadata": {"labels": {CREATED_BY: None}}
    }


def test_up_to_date_pod_is_not_patched() -> None:
    assert patch(labelled_box()) is None
    sandbox = labelled_box({"a": "1"}, {"note": "2"}, owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p")
    pod = sandbox_objects.sandbox_pod(sandbox, metadata=new(sandbox))
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) is None


def test_added_and_changed_template_labels_are_patched() -> None:
    assert patch(labelled_box({"a": "2", "b": "3"}), {"a": "1"}, propagated_labels="a") == {
        "metadata": {"labels": {"a": "2", "b": "3"}, "annotations": {LABELS: "a,b"}}
    }


def test_removed_template_labels_are_removed_and_the_list_stays_empty() -> None:
    assert patch(labelled_box(), {"a": "1", "mine": "2"}, propagated_labels="a") == {
        "metadata": {"labels": {"a": None}, "annotations": {LABELS: ""}}
    }
    assert patch(labelled_box(), {"mine": "2"}, propagated_labels="") is None


def test_annotations_are_propagated_like_labels() -> None:
    sandbox = labelled_box({}, {"b": "2"})
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"annotations": {"a": "1", "mine": "3", ANNOTATIONS: "a"}})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"annotations": {"a": None, "b": "2", ANNOTATIONS: "b"}}
    }


def test_edge_13_reserved_keys_propagated_earlier_are_removed() -> None:
    stale = {PREFIX + "claim-uid": "u", PREFIX + "unrelated": "left alone"}
    listed = f"{PREFIX}claim-uid,{HASH}"
    assert patch(labelled_box(), stale, propagated_labels=listed) == {
        "metadata": {"labels": {PREFIX + "claim-uid": None}, "annotations": {LABELS: ""}}
    }


def test_edge_13_reserved_annotations_are_removed_except_the_key_lists() -> None:
    sandbox = labelled_box()
    annotations = {
        "opentelemetry.io/trace-context": "{}",
        LABELS: "",
        ANNOTATIONS: f"{LABELS},{ANNOTATIONS},opentelemetry.io/trace-context",
    }
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"annotations": annotations})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"annotations": {"opentelemetry.io/trace-context": None, ANNOTATIONS: ""}}
    }


def test_missing_tracking_label_is_restored() -> None:
    sandbox = labelled_box()
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"labels": {}})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"labels": TRACKED}
    }


def test_edge_12_adoption_writes_the_owner_even_with_the_right_labels() -> None:
    sandbox = labelled_box()
    bystander = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"ownerReferences": [bystander]})
    view = SandboxView.from_object(sandbox)
    assert metadata_patch(PodView.from_object(pod), view) == {
        "metadata": {"resourceVersion": "1", "ownerReferences": [bystander, controller_reference(SANDBOX, view)]}
    }


KEYS = st.sampled_from(["a", "b", HASH, POOL, PREFIX + "claim-uid", "extensions.agents.x-k8s.io/z", LABELS])
METADATA = st.dictionaries(KEYS, st.sampled_from(["1", "2"]), max_size=4)


@given(METADATA, METADATA, METADATA, METADATA, st.lists(KEYS, max_size=4))
def test_one_metadata_patch_is_enough_for_any_pod(
    author_labels: dict[str, str],
    author_annotations: dict[str, str],
    labels: dict[str, str],
    annotations: dict[str, str],
    listed: list[str],
) -> None:
    sandbox = labelled_box(author_labels, author_annotations)
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


@pytest.mark.parametrize("has_pod", [True, False])
def test_mark_of_a_sleeping_sandbox_is_removed_once_it_is_to_run(has_pod: bool) -> None:
    """Else requests would resume the sandbox when a user suspends it later."""
    awake, asleep = box(), suspended()
    for sandbox in (awake, asleep):
        sandbox["metadata"]["annotations"] = {ASLEEP_SINCE: "2026-01-01T00:00:00Z"}
    pods = [own(awake)] if has_pod else []
    removed = Patch(SANDBOX, "box", {"metadata": {"annotations": {ASLEEP_SINCE: None}}})
    assert planned(awake, *pods).repair == removed
    assert planned(asleep, *pods).repair is None
