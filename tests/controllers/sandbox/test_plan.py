"""Whole reconciles: the plan, its results, and the status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api import events
from sandpool.api.kinds import POD, SERVICE
from sandpool.api.labels import ASLEEP_SINCE
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView, ServiceView, VolumeClaimView
from sandpool.controllers.options import SandboxOptions
from sandpool.controllers.sandbox.expiry import ExpiryPlan
from sandpool.controllers.sandbox.plan import (
    ChildrenPlan,
    Observed,
    Outcome,
    PendingWrites,
    PerformResult,
    StatusPlan,
    compute_status,
    plan,
    remaining_delay,
    write_behind_window,
)
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.patches import merge_patch
from sandpool.testing.objects import pod_template
from tests.support import sandbox_objects
from tests.support.sandbox_objects import pod_status

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = SandboxOptions()
READY = pod_status("Running", ready=True, ips=["10.0.0.1"])
TWO = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Pass:
    """One reconcile of a sandbox and its children. Every write succeeds unless an error is given."""

    def __init__(
        self,
        sandbox: Object,
        *pods: Object,
        service: Object | None = None,
        volumes: tuple[Object, ...] = (),
        waiting: PendingWrites | None = None,
        now: datetime = START,
        later: datetime | None = None,
        settings: SandboxOptions = SETTINGS,
        **failures: Any,
    ) -> None:
        view = SandboxView.from_object(sandbox)
        found = [PodView.from_object(pod) for pod in pods]
        claims = [VolumeClaimView.from_object(volume) for volume in volumes]
        observed = Observed(
            view,
            tuple(found),
            next((pod for pod in found if pod.name == view.pod_name), None),
            None if service is None else ServiceView.from_object(service),
            {claim.name: claim for claim in claims},
            waiting or PendingWrites(),
        )
        planned = plan(observed, settings, now)
        self.observed = observed
        self.children = planned if isinstance(planned, ChildrenPlan) else None
        self.expiry = planned if isinstance(planned, ExpiryPlan) else None
        if isinstance(planned, ChildrenPlan):
            result = PerformResult(self._pod(planned, failures), **failures)
            self.status_plan = compute_status(observed, planned, result, settings, later or now)
        elif isinstance(planned, StatusPlan):
            self.status_plan = planned
        self.sandbox = sandbox
        if self.expiry is None and self.status_plan.status_patch is not None:
            self.sandbox = merge_patch(sandbox, self.status_plan.status_patch)

    @staticmethod
    def _pod(children: ChildrenPlan, failures: dict[str, str]) -> PodView | None:
        write = children.pod.write
        if isinstance(write, Create) and "pod_error" not in failures:
            made = {**write.object, "status": {"phase": "Pending"}}
            made["metadata"] = {**made["metadata"], "uid": "pod-new"}
            return PodView.from_object(made)
        return children.pod.pod

    def condition(self, type: str) -> tuple[str, str, str] | None:
        """The sandbox as stored after this reconcile."""
        for each in self.sandbox.get("status", {}).get("conditions", []):
            if each["type"] == type:
                return each["status"], each["reason"], each["message"]
        return None


def box(**spec: Any) -> Object:
    return sandbox_objects.sandbox("box", spec=spec)


def pod(sandbox: Object, status: Object | None = None, name: str = "box", node: str = "n1", **metadata: Any) -> Object:
    return sandbox_objects.sandbox_pod(sandbox, name, metadata=metadata, spec={"nodeName": node}, status=status or {})


def settled(**spec: Any) -> Object:
    """A sandbox that is ready and says so."""
    sandbox = box(**spec)
    return Pass(sandbox, pod(sandbox, READY)).sandbox


# --- a launch --------------------------------------------------------------------------------------------------------


def test_launch_plans_one_pod_and_one_status() -> None:
    sandbox = box()
    first = Pass(sandbox)
    assert first.children is not None
    assert isinstance(first.children.pod.write, Create)
    assert (first.children.pod.repair, first.children.volumes.writes) == (None, ())
    reports = [
        {},
        pod_status("Pending", scheduled=None),
        pod_status("Pending"),
        pod_status("Pending", ips=["10.0.0.1"]),
        pod_status("Running", ips=["10.0.0.1"]),
    ]
    waiting = first.status_plan.waiting
    assert first.status_plan.status_patch is None
    for second, report in enumerate(reports):
        step = Pass(sandbox, pod(sandbox, report), waiting=waiting, now=at(second))
        assert step.children is not None
        assert step.children.pod.write is None
        assert step.status_plan.status_patch is None
        waiting = step.status_plan.waiting
    last = Pass(sandbox, pod(sandbox, READY), waiting=waiting, now=at(6))
    assert last.sandbox["status"]["podIPs"] == ["10.0.0.1"]
    assert last.condition("Ready") == ("True", "DependenciesReady", "Pod is Ready")
    assert last.status_plan == StatusPlan(status_patch={"status": last.sandbox["status"]})


def test_slow_launch_plans_a_status_after_the_delay() -> None:
    sandbox = box()
    pending = pod(sandbox, pod_status("Pending"))
    first = Pass(sandbox, pending)
    assert (first.status_plan.status_patch, first.status_plan.requeue_after) == (None, timedelta(seconds=10))
    second = Pass(sandbox, pending, waiting=first.status_plan.waiting, now=at(4))
    assert (second.status_plan.status_patch, second.status_plan.requeue_after) == (None, timedelta(seconds=6))
    assert second.status_plan.waiting == PendingWrites(status=START)
    third = Pass(sandbox, pending, waiting=second.status_plan.waiting, now=at(10))
    assert third.condition("Ready") == ("False", "DependenciesNotReady", "Pod exists with phase: Pending")
    assert third.sandbox["status"]["nodeName"] == "n1"
    assert (third.status_plan.requeue_after, third.status_plan.waiting) == (None, PendingWrites())
    again = Pass(third.sandbox, pending, now=at(20))
    assert again.status_plan == StatusPlan()


def test_edge_01_created_pod_is_reported_with_the_phase_of_the_response() -> None:
    impatient = SandboxOptions(status_delay=timedelta(0))
    assert Pass(box(), settings=impatient).condition("Ready") == (
        "False",
        "DependenciesNotReady",
        "Pod exists with phase: Pending",
    )
    sandbox = box()
    assert Pass(sandbox, pod(sandbox), settings=impatient).condition("Ready") == (
        "False",
        "DependenciesNotReady",
        "Pod exists with phase: ",
    )


def test_up_to_date_sandbox_needs_no_write() -> None:
    sandbox = settled()
    assert Pass(sandbox, pod(sandbox, READY), now=at(99)).status_plan == StatusPlan()


def test_sandbox_being_deleted_is_left_to_the_garbage_collector() -> None:
    sandbox = settled()
    sandbox["metadata"] = {**sandbox["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert Pass(sandbox).status_plan == StatusPlan()
    assert Pass(sandbox).children is None


def test_service_is_created_with_the_pod_and_reported_with_it() -> None:
    sandbox = box(service=True)
    first = Pass(sandbox)
    assert first.children is not None
    assert first.children.service is not None
    assert isinstance(first.children.service.write, Create)
    last = Pass(sandbox, pod(sandbox, READY), service=sandbox_objects.sandbox_service(sandbox))
    assert last.condition("Ready") == ("True", "DependenciesReady", "Pod is Ready; Service Exists")
    assert last.sandbox["status"]["service"] == "box"
    assert last.sandbox["status"]["serviceFQDN"] == "box.default.svc.cluster.local"


# --- errors ----------------------------------------------------------------------------------------------------------


def test_volume_error_does_not_stop_pod_and_service() -> None:
    sandbox = box(service=True, volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": {}}])
    result = Pass(sandbox, volumes_error="no space", service_error="no service")
    assert result.children is not None
    assert isinstance(result.children.pod.write, Create)
    assert result.condition("Ready") == ("False", "ReconcilerError", "Error seen: no space\nno service")
    assert result.status_plan.errors == ("no space", "no service")


def test_failed_write_hides_later_errors() -> None:
    sandbox = box(volumeClaimTemplates=[{"metadata": {"name": name}, "spec": {}} for name in ("a", "b")])
    foreign = sandbox_objects.sandbox_volume_claim(sandbox_objects.sandbox("other"), "b")
    foreign["metadata"]["name"] = "b-box"
    assert Pass(sandbox, volumes=(foreign,), volumes_error="no space").status_plan.errors == ("no space",)
    assert Pass(sandbox, volumes=(foreign,)).status_plan.errors == (
        'PVC "b-box" is owned by Sandbox/other (UID: sandbox-other), not by sandbox "box"',
    )


def test_failed_pod_creation_is_reported_at_once() -> None:
    result = Pass(box(), pod_error="quota exceeded")
    assert result.condition("Ready") == ("False", "ReconcilerError", "Error seen: quota exceeded")
    assert result.condition("PodScheduled") == (
        "Unknown",
        "PodSchedulingUnknown",
        "Pod state is unknown. Pod scheduling cannot be determined",
    )


def test_edge_16a_foreign_service_is_an_error_without_a_requested_service() -> None:
    sandbox = box()
    service = sandbox_objects.sandbox_service(sandbox_objects.sandbox("other"))
    service["metadata"]["name"] = "box"
    result = Pass(sandbox, pod(sandbox, READY), service=service)
    error = 'service "box" is owned by Sandbox/other (UID: sandbox-other), not by sandbox "box"'
    assert result.condition("Ready") == ("False", "ReconcilerError", f"Error seen: {error}")


def test_failed_service_keeps_its_fields_in_the_status() -> None:
    sandbox = box(service=True)
    assert "service" not in Pass(sandbox, pod(sandbox, READY), service_error="no").sandbox["status"]
    service = sandbox_objects.sandbox_service(sandbox)
    ready = Pass(sandbox, pod(sandbox, READY), service=service).sandbox
    unwanted = {**ready, "spec": {**ready["spec"], "service": False}}
    assert (
        Pass(unwanted, pod(sandbox, READY), service=service, service_error="no").sandbox["status"]["service"] == "box"
    )
    assert "service" not in Pass(unwanted, pod(sandbox, READY), service=service).sandbox["status"]


def test_edge_11_two_pods_are_reported_once_and_left_alone() -> None:
    sandbox = settled(service=True)
    twins = (pod(sandbox, READY), pod(sandbox, READY, "twin"))
    first = Pass(sandbox, *twins)
    assert first.children is not None
    assert (first.children.pod.write, first.children.service) == (None, None)
    assert first.condition("Ready") == ("False", "MultiplePods", TWO)
    assert first.status_plan.event == events.multiple_pods(TWO)
    assert first.status_plan.errors == ()
    second = Pass(first.sandbox, *twins)
    assert second.status_plan == StatusPlan()
    resolved = Pass(second.sandbox, twins[0], service=sandbox_objects.sandbox_service(sandbox))
    assert resolved.condition("Ready") == ("True", "DependenciesReady", "Pod is Ready; Service Exists")
    assert Pass(resolved.sandbox, *twins).status_plan.event == events.multiple_pods(TWO)


def test_edge_11_two_pods_keep_the_service_in_the_status() -> None:
    sandbox = box(service=True)
    ready = Pass(sandbox, pod(sandbox, READY), service=sandbox_objects.sandbox_service(sandbox)).sandbox
    result = Pass(ready, pod(ready, READY), pod(ready, READY, "twin"))
    assert result.sandbox["status"]["service"] == "box"
    assert "podIPs" not in result.sandbox["status"]


# --- suspend and resume ----------------------------------------------------------------------------------------------


def test_sandbox_that_sleeps_says_what_resumes_it() -> None:
    running = settled()
    running["spec"] = {**running["spec"], "operatingMode": "Suspended"}
    metadata = running["metadata"]
    running["metadata"] = {**metadata, "annotations": {**metadata.get("annotations", {}), ASLEEP_SINCE: "2026-01-01"}}
    second = Pass(Pass(running, pod(running, READY)).sandbox)
    asleep = "Sandbox is asleep because it was not used. The next request resumes it"
    assert second.condition("Ready") == ("False", "SandboxSuspended", asleep)


def test_sandbox_is_suspended_and_resumed() -> None:
    running = settled()
    running["spec"] = {**running["spec"], "operatingMode": "Suspended"}
    first = Pass(running, pod(running, READY))
    assert first.children is not None
    assert first.children.pod.write == Delete(POD, "box", "pod-box")
    assert first.condition("Suspended") == ("False", "PodTerminating", "Pod is terminating. Sandbox is suspending")
    assert first.condition("Ready") == ("False", "SandboxSuspended", "Sandbox is suspending")
    second = Pass(first.sandbox)
    assert second.condition("Suspended") == ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")
    assert second.condition("Ready") == ("False", "SandboxSuspended", "Sandbox is suspended")
    assert "podIPs" not in second.sandbox["status"]
    assert Pass(second.sandbox).status_plan == StatusPlan()
    resumed = {**second.sandbox, "spec": {**running["spec"], "operatingMode": "Running"}}
    third = Pass(resumed)
    assert third.children is not None
    assert isinstance(third.children.pod.write, Create)
    assert third.condition("Suspended") == ("False", "NotSuspended", "Sandbox is not suspended")
    assert third.condition("Ready") == ("False", "DependenciesNotReady", "Pod exists with phase: Pending")


def test_edge_04_failed_deletion_while_suspending_is_reported() -> None:
    sandbox = box(operatingMode="Suspended")
    result = Pass(sandbox, pod(sandbox, READY), pod_error="cannot delete")
    assert result.condition("Suspended") == ("False", "PodTerminating", "Pod is terminating. Sandbox is suspending")
    assert result.condition("Ready") == ("False", "ReconcilerError", "Error seen: cannot delete")


def test_service_is_kept_while_suspended() -> None:
    sandbox = box(service=True, operatingMode="Suspended")
    result = Pass(sandbox, service=sandbox_objects.sandbox_service(sandbox))
    assert result.sandbox["status"]["service"] == "box"


# --- the end ---------------------------------------------------------------------------------------------------------


def expiring(**spec: Any) -> Object:
    return settled(shutdownTime="2026-01-02T04:00:00Z", **spec)


END = datetime(2026, 1, 2, 4, tzinfo=UTC)


def test_edge_06_expiry_is_reported_before_children_are_deleted() -> None:
    sandbox = expiring()
    first = Pass(sandbox, pod(sandbox, READY), now=END)
    assert first.children is None
    assert first.condition("Ready") == ("False", "SandboxExpired", "Sandbox has expired")
    assert first.condition("PodScheduled") is None
    assert first.sandbox["status"]["podIPs"] == ["10.0.0.1"]
    assert first.status_plan.requeue_after == timedelta(milliseconds=1)
    second = Pass(first.sandbox, pod(sandbox, READY), service=sandbox_objects.sandbox_service(sandbox), now=END)
    assert second.expiry is not None
    assert second.expiry.children == (Delete(POD, "box", "pod-box"), Delete(SERVICE, "box", "service-box"))
    assert second.expiry.status_patch is not None


def test_edge_08_adopted_pod_of_another_name_is_deleted_and_a_foreign_one_is_not() -> None:
    sandbox = Pass(expiring(), now=END).sandbox
    sandbox["metadata"] = {**sandbox["metadata"], "annotations": {"agents.x-k8s.io/pod-name": "adopted"}}
    adopted = Pass(sandbox, pod(sandbox, READY, "adopted"), now=END)
    assert adopted.expiry is not None
    assert adopted.expiry.children == (Delete(POD, "adopted", "pod-adopted"),)
    foreign = Pass(sandbox, pod(sandbox, READY, "adopted", ownerReferences=[]), now=END)
    assert foreign.expiry is not None
    assert foreign.expiry.children == ()


def test_expiry_deletes_both_pods_of_a_sandbox() -> None:
    sandbox = Pass(expiring(), now=END).sandbox
    result = Pass(sandbox, pod(sandbox, READY), pod(sandbox, READY, "twin"), now=END)
    assert result.expiry is not None
    assert [write.name for write in result.expiry.children] == ["box", "twin"]


def test_sandbox_is_requeued_for_its_shutdown_time() -> None:
    sandbox = expiring()
    result = Pass(sandbox, pod(sandbox, READY), now=END - timedelta(minutes=5))
    assert result.status_plan.requeue_after == timedelta(minutes=5)


def test_edge_06_requeue_half_a_second_before_expiry_is_two_seconds() -> None:
    sandbox = expiring()
    result = Pass(sandbox, pod(sandbox, READY), now=END - timedelta(milliseconds=500))
    assert result.status_plan.requeue_after == timedelta(seconds=2)


def test_sandbox_that_expires_during_the_reconcile_is_marked() -> None:
    sandbox = box(shutdownTime="2026-01-02T04:00:00Z")
    result = Pass(sandbox, pod(sandbox, READY), now=END - timedelta(seconds=1), later=END)
    assert result.condition("Ready") == ("False", "SandboxExpired", "Sandbox has expired")
    assert result.condition("PodScheduled") is None
    assert result.status_plan.requeue_after == timedelta(milliseconds=1)


def test_extended_shutdown_time_restores_a_retained_sandbox() -> None:
    sandbox = Pass(expiring(), now=END).sandbox
    extended = {**sandbox, "spec": {**sandbox["spec"], "shutdownTime": "2026-01-02T05:00:00Z"}}
    result = Pass(extended, now=END)
    assert result.children is not None
    assert isinstance(result.children.pod.write, Create)
    assert result.condition("Ready") == ("False", "DependenciesNotReady", "Pod exists with phase: Pending")


# --- writing behind --------------------------------------------------------------------------------------------------

BEHIND = SandboxOptions(write_behind=timedelta(seconds=60))


def relabelled() -> Object:
    return settled(podTemplate=pod_template(labels={"a": "1"}))


def test_pods_are_written_at_once_by_default() -> None:
    sandbox = relabelled()
    result = Pass(sandbox, pod(sandbox, READY))
    assert result.children is not None
    assert isinstance(result.children.pod.write, Patch)


def test_edge_18_second_reconcile_does_not_extend_the_window() -> None:
    sandbox = relabelled()
    found = pod(sandbox, READY)
    first = Pass(sandbox, found, settings=BEHIND)
    assert first.children is not None
    assert first.children.pod.write is None
    assert first.status_plan == StatusPlan(requeue_after=timedelta(seconds=1), waiting=PendingWrites(pod=START))
    second = Pass(sandbox, found, settings=BEHIND, waiting=first.status_plan.waiting, now=at(0.75))
    assert second.status_plan == StatusPlan(requeue_after=timedelta(seconds=0.25), waiting=PendingWrites(pod=START))
    third = Pass(sandbox, found, settings=BEHIND, waiting=second.status_plan.waiting, now=at(1))
    now = Pass(sandbox, found)
    assert third.children is not None
    assert now.children is not None
    assert third.children.pod.write == now.children.pod.write
    assert third.status_plan.waiting == PendingWrites()


def test_edge_18_adoption_is_never_deferred() -> None:
    sandbox = relabelled()
    result = Pass(sandbox, pod(sandbox, READY, ownerReferences=[]), settings=BEHIND)
    assert result.children is not None
    assert isinstance(result.children.pod.write, Patch)


def test_deferred_write_stays_pending_through_a_failed_reconcile() -> None:
    sandbox = settled()
    waiting = PendingWrites(pod=START)
    failed = Pass(sandbox, pod(sandbox, READY), waiting=waiting, volumes_error="x")
    assert failed.status_plan.waiting.pod == START
    assert Pass(sandbox, pod(sandbox, READY), waiting=waiting).status_plan.waiting.pod is None


def test_new_generation_without_changes_is_written_after_the_delay() -> None:
    sandbox = settled()
    sandbox["metadata"] = {**sandbox["metadata"], "generation": 2}
    first = Pass(sandbox, pod(sandbox, READY))
    assert (first.status_plan.status_patch, first.status_plan.requeue_after) == (None, timedelta(seconds=10))
    second = Pass(sandbox, pod(sandbox, READY), waiting=first.status_plan.waiting, now=at(10))
    assert all(each["observedGeneration"] == 2 for each in second.sandbox["status"]["conditions"])


def test_shortest_delay_is_requeued() -> None:
    sandbox = settled(podTemplate=pod_template(labels={"a": "1"}), shutdownTime="2026-01-02T03:04:09Z")
    sandbox["metadata"] = {**sandbox["metadata"], "generation": 2}
    found = pod(sandbox, READY)
    assert Pass(sandbox, found, settings=BEHIND).status_plan.requeue_after == timedelta(seconds=1)
    assert Pass(sandbox, found).status_plan.requeue_after == timedelta(seconds=4)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("since", "at", "left"), [(None, 0, 3), (START, 0, 3), (START, 1, 2), (START, 3, 0), (START, 9, 0)]
)
def test_delay_counts_from_the_first_need_of_the_write(since: datetime | None, at: float, left: float) -> None:
    assert remaining_delay(since, seconds(3), START + seconds(at)) == seconds(left)


def test_zero_window_defers_nothing() -> None:
    assert remaining_delay(None, seconds(0), START) == seconds(0)


@pytest.mark.parametrize(("asked_for", "granted"), [(0, 0), (0.5, 0.5), (1, 1), (60, 1)])
def test_edge_18_write_behind_window_is_at_most_a_second(asked_for: float, granted: float) -> None:
    assert write_behind_window(seconds(asked_for)) == seconds(granted)


# --- what a reconcile leaves -----------------------------------------------------------------------------------------

_KEYS = st.sampled_from(["a", "agents.x-k8s.io/warm-pool-sandbox", "agents.x-k8s.io/created-by", "app"])
_METADATA = st.dictionaries(_KEYS, st.sampled_from(["1", "2"]), max_size=3)
_REPORTS = st.sampled_from([None, {}, pod_status("Pending"), pod_status("Running"), READY, pod_status("Failed")])
# What another writer changes at the same time.
_DISTURBANCES: dict[str, Object] = {
    "nothing": {},
    "a label of the pod": {"pod": {"metadata": {"labels": {"app": "other"}}}},
    "the list of copied labels": {"pod": {"metadata": {"annotations": {"agents.x-k8s.io/propagated-labels": "app"}}}},
    "the readiness of the pod": {"pod": {"status": pod_status("Running", ips=["10.0.0.2"])}},
    "the owner of the pod": {"pod": {"metadata": {"ownerReferences": []}}},
    "a label of the sandbox": {"sandbox": {"metadata": {"labels": {"agents.x-k8s.io/created-by": "user"}}}},
    "the mode of the sandbox": {"sandbox": {"spec": {"operatingMode": "Suspended"}}},
    "the status of the sandbox": {"sandbox": {"status": {"nodeName": "elsewhere"}}},
}


@given(_METADATA, _METADATA, _REPORTS, st.sampled_from(sorted(_DISTURBANCES)), st.sampled_from([0, 10]))
def test_outcome_that_holds_leaves_nothing_to_decide(
    author: dict[str, str], labels: dict[str, str], report: Object | None, disturbance: str, delay: int
) -> None:
    sandbox = sandbox_objects.sandbox(
        "box", metadata={"labels": labels}, spec={"podTemplate": {"metadata": {"labels": author}, "spec": {}}}
    )
    before = None if report is None else pod(sandbox, report)
    options = SandboxOptions(status_delay=timedelta(seconds=delay))
    first = Pass(sandbox, *(() if before is None else (before,)), settings=options)
    assert first.children is not None
    write = first.children.pod.write
    made = before
    if isinstance(write, Create):
        made = {**write.object, "status": {"phase": "Pending"}}
        made["metadata"] = {**made["metadata"], "uid": "pod-new"}
    elif isinstance(write, Patch):
        made = merge_patch(before, write.body)
    assert made is not None
    written = PodView.from_object(made)
    disturbed = _DISTURBANCES[disturbance]
    found = PodView.from_object(merge_patch(made, disturbed["pod"])) if "pod" in disturbed else written
    view = SandboxView.from_object(merge_patch(first.sandbox, disturbed.get("sandbox", {})))
    pods = (found,) if found.owner is not None else ()
    now = Observed(view, pods, found, None, {}, first.status_plan.waiting)
    outcome = Outcome(first.observed, first.children, written, first.status_plan)

    holds = outcome.holds(now)

    again = plan(now, options, START)
    assert isinstance(again, ChildrenPlan)
    status = compute_status(now, again, PerformResult(again.pod.pod), options, START)
    is_idle = (again.pod.write, again.pod.repair, status.status_patch, status.waiting) == (
        None,
        None,
        None,
        now.waiting,
    )
    assert is_idle or not holds
    assert holds or disturbance != "nothing"
