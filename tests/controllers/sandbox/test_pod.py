from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView, controller_reference
from sandpool.controllers.sandbox.pod import PodPlan, new_pod, plan_pod
from sandpool.controllers.sandbox.pod_metadata import new_metadata
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.testing.objects import pod_template
from tests.support import sandbox_objects

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
