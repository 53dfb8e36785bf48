from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import is_reserved_annotation, is_reserved_label
from sandpool.api.names import name_hash
from sandpool.api.resource import Object, ResourceType
from sandpool.api.views import PodView, SandboxView, controller_reference
from sandpool.controllers.sandbox.pod import PodPlan, metadata_patch, new_metadata, new_pod, plan_pod
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


def test_a_missing_pod_is_made_in_one_write() -> None:
    sandbox = box()
    assert planned(sandbox) == PodPlan(write=Create(POD, new_pod(SandboxView.from_object(sandbox))))


def test_an_annotation_that_repeats_the_name_is_left_alone() -> None:
    """Members of pools are created with it; taking it away and writing it again would be two writes for nothing."""
    assert (planned(box("box")).repair, planned(box("box")).refresh) == (None, "")
    assert planned(suspended("box")).repair is None
    sandbox = box("box")
    assert planned(sandbox, own(sandbox)).repair is None


@pytest.mark.parametrize("annotation", ["gone", ""])
def test_an_annotation_that_leads_nowhere_is_removed_and_the_pod_made_under_the_sandbox_name(annotation: str) -> None:
    plan = planned(box(annotation))
    assert plan.repair == repaired(None)
    assert plan.refresh == annotation
    assert isinstance(plan.write, Create)
    assert plan.write.object["metadata"]["name"] == "box"


def test_a_new_pod_has_the_spec_of_the_template() -> None:
    view = SandboxView.from_object(box())
    pod = new_pod(view)
    assert pod["spec"] is view.pod_template["spec"]
    assert (pod["apiVersion"], pod["kind"], pod["metadata"]) == ("v1", "Pod", new_metadata(view))


def test_edge_20_claimed_volumes_replace_those_of_the_same_name_and_come_last() -> None:
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    sandbox = box(
        podTemplate=pod_template(spec={"volumes": volumes}),
        volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": {}}, {"metadata": {"name": "log"}, "spec": {}}],
    )
    assert new_pod(SandboxView.from_object(sandbox))["spec"]["volumes"] == [
        {"name": "tmp", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-box"}},
        {"name": "log", "persistentVolumeClaim": {"claimName": "log-box"}},
    ]
    assert len(volumes) == 2


# --- one pod ---------------------------------------------------------------------------------------------------------


def test_an_own_pod_that_is_up_to_date_needs_nothing() -> None:
    sandbox = box()
    pod = own(sandbox)
    plan = planned(sandbox, pod)
    assert (plan.pod, plan.repair, plan.write, plan.error) == (pod_of(pod), None, None, "")


def test_the_metadata_of_an_own_pod_may_wait_to_be_written() -> None:
    sandbox = box(podTemplate=pod_template(labels={"a": "1"}))
    plan = planned(sandbox, own(sandbox))
    annotations = {"agents.x-k8s.io/propagated-labels": "a"}
    assert plan.write == Patch(POD, "box", {"metadata": {"labels": {"a": "1"}, "annotations": annotations}})
    assert plan.deferrable


def test_the_spec_of_an_existing_pod_is_never_written() -> None:
    sandbox = box(podTemplate=pod_template(spec={"nodeName": "elsewhere"}))
    assert planned(sandbox, own(sandbox)).write is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_not_replaced(phase: str) -> None:
    sandbox = box()
    pod = {**own(sandbox), "status": {"phase": phase}}
    assert planned(sandbox, pod).write is None


def test_edge_10_an_own_pod_that_is_terminating_is_waited_for() -> None:
    sandbox = box()
    pod = own(sandbox, **DELETING)
    assert planned(sandbox, pod) == PodPlan(pod_of(pod), deferrable=True)


def test_edge_12_an_unowned_pod_with_the_tracking_label_is_adopted_at_once() -> None:
    sandbox = box()
    plan = planned(sandbox, unowned(sandbox))
    references = [controller_reference(SANDBOX, SandboxView.from_object(sandbox))]
    assert plan.write == Patch(POD, "box", {"metadata": {"resourceVersion": "1", "ownerReferences": references}})
    assert not plan.deferrable


def test_an_adoptable_pod_of_another_name_is_adopted_by_the_annotation() -> None:
    sandbox = box("prepared")
    plan = planned(sandbox, unowned(sandbox, "prepared", **ADOPTABLE))
    assert isinstance(plan.write, Patch)
    assert plan.write.name == "prepared"
    assert plan.write.body["metadata"]["labels"] == {"agents.x-k8s.io/sandbox-name-hash": name_hash("box")}
    assert plan.repair is None


def test_r10_an_unowned_pod_that_was_not_meant_for_it_is_an_error() -> None:
    sandbox = box("prepared")
    assert planned(sandbox, unowned(sandbox, "prepared", labels={})) == PodPlan(
        error=(
            'cannot adopt unowned pod "prepared" for sandbox "box": it has no label agents.x-k8s.io/adoptable="true"'
        )
    )


def test_a_pod_of_somebody_else_is_an_error_and_the_annotation_that_led_to_it_goes() -> None:
    sandbox = box("taken")
    error = 'pod "taken" is owned by ReplicaSet/web (UID: rs-1), not by sandbox "box"'
    assert planned(sandbox, foreign(sandbox, "taken")) == PodPlan(repair=repaired(None), error=error)


def test_edge_09_a_pod_of_an_earlier_sandbox_of_the_same_name_is_not_owned() -> None:
    sandbox = box()
    assert planned(sandbox, foreign(sandbox, reference=BEFORE)).error == (
        'pod "box" is owned by Sandbox/box (UID: before), not by sandbox "box"'
    )


def test_edge_09_the_annotation_is_repaired_to_an_owned_survivor() -> None:
    sandbox = box("gone")
    survivor = own(sandbox, "survivor")
    assert planned(sandbox, survivor) == PodPlan(pod_of(survivor), repair=repaired("survivor"), deferrable=True)
    named_like_it = own(sandbox)
    assert planned(sandbox, named_like_it) == PodPlan(pod_of(named_like_it), repair=repaired(None), deferrable=True)


def test_a_survivor_of_another_name_is_written_down_where_nothing_was() -> None:
    sandbox = box()
    assert planned(sandbox, own(sandbox, "survivor")).repair == repaired("survivor")


def test_edge_09_an_owned_pod_beats_the_annotated_adoptable_one() -> None:
    sandbox = box("prepared")
    pod = own(sandbox)
    assert planned(sandbox, pod, unowned(sandbox, "prepared", **ADOPTABLE)) == PodPlan(
        pod_of(pod), repair=repaired(None), deferrable=True
    )


@pytest.mark.parametrize("name", ["box", "survivor"])
def test_an_owned_pod_that_lost_its_label_is_found_and_gets_it_back(name: str) -> None:
    sandbox = box()
    pod = own(sandbox, name, labels={})
    plan = planned(sandbox, pod)
    assert plan.pod == pod_of(pod)
    assert plan.write == Patch(
        POD, name, {"metadata": {"labels": {"agents.x-k8s.io/sandbox-name-hash": name_hash("box")}}}
    )


def test_an_owned_pod_that_no_index_knows_yet_is_ours() -> None:
    """That is what a create finds that is answered by AlreadyExists."""
    sandbox = box()
    pod = pod_of(own(sandbox))
    assert plan_pod(SandboxView.from_object(sandbox), (), pod) == PodPlan(pod, deferrable=True)


# --- several pods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["Running", "Suspended"])
def test_edge_11_with_two_owned_pods_nothing_is_touched(mode: str) -> None:
    sandbox = box(operatingMode=mode)
    assert planned(sandbox, own(sandbox), own(sandbox, "twin")) == PodPlan(count=2)


def test_edge_11_the_second_may_be_one_that_no_index_knows_yet() -> None:
    sandbox = box("odd")
    known, new = pod_of(own(sandbox)), pod_of(own(sandbox, "odd"))
    assert plan_pod(SandboxView.from_object(sandbox), (known,), new) == PodPlan(count=2)


def test_an_annotation_that_leads_nowhere_goes_also_then() -> None:
    sandbox = box("gone")
    assert planned(sandbox, own(sandbox), own(sandbox, "twin")) == PodPlan(repair=repaired(None), count=2)


# --- suspended -------------------------------------------------------------------------------------------------------


def test_suspending_deletes_the_pod_and_keeps_the_annotation_meanwhile() -> None:
    sandbox = suspended("adopted")
    pod = own(sandbox, "adopted")
    assert planned(sandbox, pod) == PodPlan(pod_of(pod), write=deletion(pod))


def test_a_pod_that_is_terminating_is_not_deleted_again() -> None:
    sandbox = suspended("adopted")
    pod = own(sandbox, "adopted", **DELETING)
    assert planned(sandbox, pod) == PodPlan(pod_of(pod))


def test_suspended_without_a_pod_forgets_its_name() -> None:
    assert planned(suspended("adopted")) == PodPlan(repair=repaired(None))
    assert planned(suspended()) == PodPlan()


def test_edge_03_a_foreign_pod_while_suspended_is_no_error_and_survives() -> None:
    sandbox = suspended()
    pod = foreign(sandbox)
    assert planned(sandbox, pod) == PodPlan(pod_of(pod))


@pytest.mark.parametrize("make", [foreign, unowned])
def test_edge_08_a_pod_that_is_not_owned_survives_suspension_and_the_annotation_goes(make: Any) -> None:
    sandbox = suspended("other")
    pod = make(sandbox, "other")
    assert planned(sandbox, pod) == PodPlan(pod_of(pod), repair=repaired(None))


def test_suspending_deletes_an_owned_survivor_too() -> None:
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
def test_r10_only_own_pods_are_deleted_and_only_own_or_offered_ones_changed(
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


def test_a_new_pod_gets_what_the_template_says_and_a_list_of_it() -> None:
    sandbox = labelled_box({"b": "2", "a": "1"}, {"note": "3"})
    assert new(sandbox) == {
        "name": "my-sandbox",
        "namespace": "default",
        "labels": {"a": "1", "b": "2", HASH: "374de8f5"},
        "annotations": {"note": "3", LABELS: "a,b", ANNOTATIONS: "note"},
        "ownerReferences": [controller_reference(SANDBOX, SandboxView.from_object(sandbox))],
    }


def test_a_new_pod_has_no_empty_lists() -> None:
    metadata = new(labelled_box())
    assert metadata["labels"] == TRACKED
    assert "annotations" not in metadata


def test_edge_13_an_author_cannot_set_reserved_keys() -> None:
    reserved = {HASH: "x", POOL: "x", "extensions.agents.x-k8s.io/y": "x", PREFIX + "claim-uid": "x"}
    metadata = new(labelled_box({**reserved, "a": "1"}, {**reserved, "opentelemetry.io/trace-context": "{}", "b": "2"}))
    assert metadata["labels"] == {"a": "1", **TRACKED}
    assert metadata["annotations"] == {"b": "2", LABELS: "a", ANNOTATIONS: "b"}


def test_edge_19_a_subdomain_of_a_reserved_prefix_is_not_reserved() -> None:
    metadata = new(labelled_box({"foo.agents.x-k8s.io/x": "1"}))
    assert metadata["labels"]["foo.agents.x-k8s.io/x"] == "1"


def test_a_pod_of_a_pool_shows_pool_template_and_creator() -> None:
    sandbox = labelled_box(
        owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p", sandbox_template_ref_hash="t", created_by="controller"
    )
    assert new(sandbox)["labels"] == {**TRACKED, POOL: "p", TEMPLATE: "t", CREATED_BY: "controller"}


def evictable(owner: ResourceType | None, author: dict[str, str] | None = None) -> Object:
    """A sandbox whose metadata say that its pod may be evicted."""
    sandbox = labelled_box(author_annotations=author, owner=owner)
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
    claimed = labelled_box(owner=SANDBOX_CLAIM)
    pod = sandbox_objects.sandbox_pod(claimed, metadata={"labels": TRACKED, "annotations": pooled["annotations"]})
    body = metadata_patch(PodView.from_object(pod), SandboxView.from_object(claimed))
    assert body == {"metadata": {"annotations": {EVICT: None, ANNOTATIONS: ""}}}


def test_a_pod_of_a_claim_shows_no_pool() -> None:
    sandbox = labelled_box(owner=SANDBOX_CLAIM, warm_pool_sandbox="p", sandbox_template_ref_hash="t", claim_uid="u")
    assert new(sandbox)["labels"] == {**TRACKED, TEMPLATE: "t"}


@pytest.mark.parametrize("owner", [None, SANDBOX])
def test_edge_14_labels_of_a_sandbox_that_no_pool_or_claim_owns_are_not_believed(owner: ResourceType | None) -> None:
    sandbox = labelled_box(owner=owner, warm_pool_sandbox="p", sandbox_template_ref_hash="t")
    assert new(sandbox)["labels"] == TRACKED


def test_edge_14_they_go_from_the_pod_when_the_sandbox_leaves_its_pool() -> None:
    claimed = labelled_box(owner=SANDBOX_CLAIM, sandbox_template_ref_hash="t")
    assert patch(claimed, {POOL: "p", TEMPLATE: "t"}) == {"metadata": {"labels": {POOL: None}}}
    alone = labelled_box(warm_pool_sandbox="p", sandbox_template_ref_hash="t")
    assert patch(alone, {POOL: "p", TEMPLATE: "t"}) == {"metadata": {"labels": {POOL: None, TEMPLATE: None}}}


def test_owners_are_recognised_whatever_their_version() -> None:
    sandbox = labelled_box(owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p")
    reference = sandbox["metadata"]["ownerReferences"][0]
    reference["apiVersion"] = "extensions.agents.x-k8s.io/v1alpha1"
    assert new(sandbox)["labels"] == {**TRACKED, POOL: "p"}


@pytest.mark.parametrize(
    ("creator", "shown"), [("go-client", "go-client"), ("python-client", "python-client"), ("curl", "unknown")]
)
def test_only_known_creators_have_a_name(creator: str, shown: str) -> None:
    assert new(labelled_box(created_by=creator))["labels"][CREATED_BY] == shown


def test_a_creator_that_is_gone_goes_from_the_pod() -> None:
    assert patch(labelled_box(created_by=""), {CREATED_BY: "controller"}) == {
        "metadata": {"labels": {CREATED_BY: None}}
    }


def test_a_pod_that_is_up_to_date_is_not_patched() -> None:
    assert patch(labelled_box()) is None
    sandbox = labelled_box({"a": "1"}, {"note": "2"}, owner=SANDBOX_WARM_POOL, warm_pool_sandbox="p")
    pod = sandbox_objects.sandbox_pod(sandbox, metadata=new(sandbox))
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) is None


def test_what_the_author_added_or_changed_is_patched() -> None:
    assert patch(labelled_box({"a": "2", "b": "3"}), {"a": "1"}, propagated_labels="a") == {
        "metadata": {"labels": {"a": "2", "b": "3"}, "annotations": {LABELS: "a,b"}}
    }


def test_what_the_author_removed_is_removed_and_the_list_stays_empty() -> None:
    assert patch(labelled_box(), {"a": "1", "mine": "2"}, propagated_labels="a") == {
        "metadata": {"labels": {"a": None}, "annotations": {LABELS: ""}}
    }
    assert patch(labelled_box(), {"mine": "2"}, propagated_labels="") is None


def test_annotations_are_treated_the_same() -> None:
    sandbox = labelled_box({}, {"b": "2"})
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"annotations": {"a": "1", "mine": "3", ANNOTATIONS: "a"}})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"annotations": {"a": None, "b": "2", ANNOTATIONS: "b"}}
    }


def test_edge_13_reserved_keys_that_were_once_propagated_are_scrubbed() -> None:
    stale = {PREFIX + "claim-uid": "u", PREFIX + "unrelated": "left alone"}
    listed = f"{PREFIX}claim-uid,{HASH}"
    assert patch(labelled_box(), stale, propagated_labels=listed) == {
        "metadata": {"labels": {PREFIX + "claim-uid": None}, "annotations": {LABELS: ""}}
    }


def test_edge_13_reserved_annotations_are_scrubbed_except_our_lists() -> None:
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


def test_a_lost_tracking_label_is_restored() -> None:
    sandbox = labelled_box()
    pod = sandbox_objects.sandbox_pod(sandbox, metadata={"labels": {}})
    assert metadata_patch(PodView.from_object(pod), SandboxView.from_object(sandbox)) == {
        "metadata": {"labels": TRACKED}
    }


def test_edge_12_adoption_with_the_right_labels_still_writes_the_owner() -> None:
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
def test_one_patch_is_enough_and_leaves_no_trace_of_the_author_but_what_is_wanted(
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
