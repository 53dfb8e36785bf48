from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxStatus, SandboxView
from sandpool.controllers.sandbox.status import (
    ChildrenState,
    ConditionValue,
    conditions,
    finished,
    is_urgent,
    pod_scheduled,
    ready,
    status,
    status_patch,
    suspended,
)
from sandpool.kube.patches import merge_patch
from tests.support import sandbox_objects
from tests.support.sandbox_objects import pod_status

NOW = "2026-01-02T03:04:05Z"
SELECTOR = "agents.x-k8s.io/sandbox-name-hash=374de8f5"
ELSEWHERE = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}
BOX = sandbox_objects.sandbox("my-sandbox")


def box(before: SandboxStatus | None = None, generation: int = 1, **spec: Any) -> SandboxView:
    known = {} if before is None else {"status": before.to_object()}
    return SandboxView.from_object(
        sandbox_objects.sandbox("my-sandbox", spec=spec, metadata={"generation": generation}, **known)
    )


def pod(reported: Object | None = None, *, node: str = "", foreign: bool = False) -> PodView:
    metadata = {"ownerReferences": [ELSEWHERE]} if foreign else {}
    return PodView.from_object(
        sandbox_objects.sandbox_pod(BOX, metadata=metadata, spec={"nodeName": node}, status=reported or {})
    )


def computed(
    state: ChildrenState, before: SandboxStatus | None = None, generation: int = 1, **spec: Any
) -> SandboxStatus:
    return status(box(before, generation, **spec), state, NOW, "cluster.local")


RUNNING = pod_status("Running", ready=True, ips=["10.0.0.1", "fd00::1"])
READY = computed(ChildrenState(pod(RUNNING, node="n1")))

# --- what it says ----------------------------------------------------------------------------------------------------


def test_ready_sandbox_has_a_complete_status() -> None:
    assert replace(READY, conditions=[]) == SandboxStatus(
        conditions=[], node_name="n1", pod_ips=("10.0.0.1", "fd00::1"), selector=SELECTOR
    )
    assert READY.ready


def test_edge_02_selector_outlives_the_pod() -> None:
    after = computed(ChildrenState(), READY)
    assert (after.node_name, after.pod_ips, after.selector) == ("", (), SELECTOR)
    assert computed(ChildrenState()).selector == ""


def test_edge_02_03_foreign_pod_sets_only_the_selector() -> None:
    after = computed(ChildrenState(pod(RUNNING, node="n1", foreign=True)), operatingMode="Suspended")
    assert (after.node_name, after.pod_ips, after.selector) == ("", (), SELECTOR)


def test_service_is_reported_with_its_domain_name() -> None:
    sandbox = box(service=True)
    after = status(sandbox, ChildrenState(pod(RUNNING), service=True), NOW, "example.org")
    assert (after.service, after.service_fqdn) == ("my-sandbox", "my-sandbox.default.svc.example.org")
    assert replace(computed(ChildrenState(), after), conditions=[]).service == ""


def test_unknown_service_keeps_its_fields() -> None:
    before = replace(READY, service="my-sandbox", service_fqdn="my-sandbox.default.svc.cluster.local")
    after = computed(ChildrenState(pod(RUNNING), service=None, errors=("x",)), before)
    assert (after.service, after.service_fqdn) == (before.service, before.service_fqdn)


# --- how it is written -----------------------------------------------------------------------------------------------


def test_unchanged_status_is_not_written() -> None:
    assert status_patch(READY, computed(ChildrenState(pod(RUNNING, node="n1")), READY)) is None


def test_patch_has_changed_fields_and_removes_empty_ones() -> None:
    after = computed(ChildrenState(), READY)
    patch = status_patch(READY, after)
    assert patch == {"status": {"conditions": after.conditions, "nodeName": None, "podIPs": None}}
    assert merge_patch({"status": READY.to_object()}, patch) == {"status": after.to_object()}


# --- when it is written ----------------------------------------------------------------------------------------------

NOTHING = SandboxStatus()
CREATED = computed(ChildrenState(pod(pod_status("Pending", scheduled=None))))
BOUND = computed(ChildrenState(pod(pod_status("Pending"), node="n1")))
STARTED = computed(ChildrenState(pod(pod_status("Running", ips=["10.0.0.1"]), node="n1")))
STUCK = computed(
    ChildrenState(pod(pod_status("Pending", scheduled="False", reason="Unschedulable", message="0/3 nodes")))
)
ERROR = computed(ChildrenState(pod_error="x", errors=("x",)))
OTHER_ERROR = computed(ChildrenState(pod_error="y", errors=("y",)))
SUSPENDING = computed(ChildrenState(pod(RUNNING, node="n1")), operatingMode="Suspended")
SUSPENDED = computed(ChildrenState(), operatingMode="Suspended")
FAILED = computed(ChildrenState(pod(pod_status("Failed"))))
TWO_PODS = computed(ChildrenState(pod_count=2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NOTHING, CREATED),
        (NOTHING, BOUND),
        (NOTHING, STARTED),
        (CREATED, BOUND),
        (BOUND, STARTED),
        (STARTED, computed(ChildrenState())),
        (CREATED, replace(CREATED, service="my-sandbox")),
    ],
    ids=["created", "bound", "started", "bound later", "started later", "pod lost on the way", "service made"],
)
def test_status_of_a_launch_under_way_is_deferrable(before: SandboxStatus, after: SandboxStatus) -> None:
    assert status_patch(before, after) is not None
    assert not is_urgent(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NOTHING, READY),
        (STARTED, READY),
        (READY, STARTED),
        (READY, replace(READY, pod_ips=("10.0.0.9",))),
        (NOTHING, STUCK),
        (STUCK, BOUND),
        (STUCK, CREATED),
        (NOTHING, ERROR),
        (ERROR, OTHER_ERROR),
        (ERROR, BOUND),
        (READY, SUSPENDING),
        (SUSPENDING, SUSPENDED),
        (SUSPENDED, CREATED),
        (STARTED, FAILED),
        (NOTHING, FAILED),
        (READY, TWO_PODS),
        (TWO_PODS, READY),
    ],
    ids=[
        "becomes ready",
        "ready",
        "no longer ready",
        "address of a ready sandbox",
        "unschedulable",
        "scheduled later",
        "no longer unschedulable",
        "error",
        "another error",
        "error gone",
        "suspending",
        "suspended",
        "resuming",
        "failed",
        "failed at once",
        "two pods",
        "one pod again",
    ],
)
def test_status_that_clients_act_on_is_urgent(before: SandboxStatus, after: SandboxStatus) -> None:
    assert is_urgent(before, after)


def test_edge_17_node_name_alone_is_deferred_before_ready_and_written_after() -> None:
    assert not is_urgent(STARTED, replace(STARTED, node_name="n2"))
    assert is_urgent(READY, replace(READY, node_name="n2"))


def test_new_message_of_unschedulable_is_deferred_and_a_new_reason_is_not() -> None:
    def stuck(reason: str, message: str) -> SandboxStatus:
        reported = pod_status("Pending", scheduled="False", reason=reason, message=message)
        return computed(ChildrenState(pod(reported)))

    assert not is_urgent(STUCK, stuck("Unschedulable", "0/4 nodes"))
    assert is_urgent(STUCK, stuck("SchedulingGated", "0/3 nodes"))


@pytest.mark.parametrize("before", [READY, SUSPENDED, FAILED])
def test_new_generation_without_other_changes_is_deferrable(before: SandboxStatus) -> None:
    after = replace(before, conditions=[{**each, "observedGeneration": 2} for each in before.conditions])
    assert status_patch(before, after) is not None
    assert not is_urgent(before, after)


CONDITIONS_BOX = sandbox_objects.sandbox("box")


def box_in_mode(mode: str = "Running", **spec: Any) -> SandboxView:
    return SandboxView.from_object(sandbox_objects.sandbox("box", spec={"operatingMode": mode, **spec}))


def pod_in_phase(status: Object | None = None, *, foreign: bool = False) -> PodView:
    metadata = {"ownerReferences": [ELSEWHERE]} if foreign else {}
    return PodView.from_object(sandbox_objects.sandbox_pod(CONDITIONS_BOX, metadata=metadata, status=status or {}))


READY_POD = pod_in_phase(pod_status("Running", ready=True, ips=["10.0.0.1"]))
SERVICE_ERROR = ChildrenState(errors=("service went wrong",))
POD_ERROR = ChildrenState(pod_error="pod went wrong", errors=("pod went wrong",))


@pytest.mark.parametrize(
    ("mode", "state", "value"),
    [
        ("Running", ChildrenState(), ("False", "NotSuspended", "Sandbox is not suspended")),
        ("", POD_ERROR, ("False", "NotSuspended", "Sandbox is not suspended")),
        ("Suspended", ChildrenState(), ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")),
        (
            "Suspended",
            ChildrenState(pod_in_phase(), pod_error="delete failed", errors=("delete failed",)),
            ("False", "PodTerminating", "Pod is terminating. Sandbox is suspending"),
        ),
        (
            "Suspended",
            ChildrenState(pod_in_phase(foreign=True)),
            ("False", "PodNotOwned", "Refused to delete pod because it is not owned by this sandbox"),
        ),
        (
            "Suspended",
            POD_ERROR,
            ("Unknown", "PodStateUnknown", "Pod state is unknown. Sandbox suspension cannot be confirmed"),
        ),
        (
            "Suspended",
            ChildrenState(pod_count=2),
            ("Unknown", "PodStateUnknown", "Pod state is unknown. Sandbox suspension cannot be confirmed"),
        ),
        ("Suspended", SERVICE_ERROR, ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")),
    ],
    ids=[
        "running",
        "unknown mode",
        "no pod",
        "edge 4: delete failed",
        "edge 3: foreign pod",
        "edge 5: pod error",
        "two pods",
        "edge 5: service error",
    ],
)
def test_suspended_condition_follows_mode_and_pod(mode: str, state: ChildrenState, value: tuple[str, str, str]) -> None:
    assert suspended(box_in_mode(mode), state) == value


@pytest.mark.parametrize(
    ("found", "value"),
    [
        (None, None),
        (pod_in_phase(), None),
        (pod_in_phase(pod_status("Running")), None),
        (pod_in_phase(pod_status("Succeeded")), ("True", "PodSucceeded", "Pod completed successfully")),
        (pod_in_phase(pod_status("Failed")), ("True", "PodFailed", "Pod failed")),
        (pod_in_phase(pod_status("Failed"), foreign=True), None),
    ],
)
def test_finished_condition_follows_the_pod_phase(found: PodView | None, value: tuple[str, str, str] | None) -> None:
    assert finished(box_in_mode(), ChildrenState(found)) == value


NOT_REPORTED = ("Unknown", "PodSchedulingUnknown", "Pod has not reported a PodScheduled condition yet")
UNDETERMINED = ("Unknown", "PodSchedulingUnknown", "Pod state is unknown. Pod scheduling cannot be determined")


@pytest.mark.parametrize(
    ("state", "value"),
    [
        (ChildrenState(), None),
        (ChildrenState(pod_in_phase(pod_status("Running"), foreign=True)), None),
        (ChildrenState(pod_in_phase()), NOT_REPORTED),
        (POD_ERROR, UNDETERMINED),
        (ChildrenState(pod_count=2), UNDETERMINED),
        (SERVICE_ERROR, None),
        (ChildrenState(pod_in_phase(pod_status("Pending", scheduled="True"))), ("True", "PodScheduled", "")),
        (ChildrenState(pod_in_phase(pod_status("Pending", scheduled="False"))), ("False", "PodSchedulingUnknown", "")),
        (
            ChildrenState(pod_in_phase(pod_status("Pending", scheduled="Unknown"))),
            ("Unknown", "PodSchedulingUnknown", ""),
        ),
        (
            ChildrenState(
                pod_in_phase(pod_status("Pending", scheduled="False", reason="Unschedulable", message="0/3 nodes"))
            ),
            ("False", "Unschedulable", "0/3 nodes"),
        ),
    ],
    ids=[
        "no pod",
        "foreign pod",
        "nothing reported",
        "edge 5: pod error",
        "two pods",
        "edge 5: service error",
        "scheduled",
        "not scheduled, no reason",
        "unknown, no reason",
        "verbatim",
    ],
)
def test_pod_scheduled_condition_follows_the_pod(state: ChildrenState, value: tuple[str, str, str] | None) -> None:
    assert pod_scheduled(box_in_mode(), state) == value


def not_ready(message: str) -> ConditionValue:
    return ConditionValue("False", "DependenciesNotReady", message)


@pytest.mark.parametrize(
    ("found", "value"),
    [
        (None, not_ready("Pod does not exist")),
        (pod_in_phase(), not_ready("Pod exists with phase: ")),
        (pod_in_phase(pod_status("Pending")), not_ready("Pod exists with phase: Pending")),
        (pod_in_phase(pod_status("Unknown")), not_ready("Pod exists with phase: Unknown")),
        (pod_in_phase(pod_status("Running", ips=["10.0.0.1"])), not_ready("Pod is Running but not Ready")),
        (pod_in_phase(pod_status("Running", ready=True)), not_ready("Pod is Ready but has no podIPs yet")),
        (READY_POD, ("True", "DependenciesReady", "Pod is Ready")),
        (pod_in_phase(pod_status("Succeeded")), ("False", "PodSucceeded", "Pod completed successfully")),
        (pod_in_phase(pod_status("Failed")), ("False", "PodFailed", "Pod failed")),
    ],
    ids=[
        "none",
        "edge 1: no phase",
        "pending",
        "unknown",
        "not ready",
        "no address",
        "ready",
        "succeeded",
        "failed",
    ],
)
def test_ready_follows_the_pod(found: PodView | None, value: tuple[str, str, str]) -> None:
    assert ready(box_in_mode(), ChildrenState(found)) == value


@pytest.mark.parametrize(
    ("wanted", "exists", "value"),
    [
        (None, False, ("True", "DependenciesReady", "Pod is Ready")),
        (None, True, ("True", "DependenciesReady", "Pod is Ready; Service Exists")),
        (True, True, ("True", "DependenciesReady", "Pod is Ready; Service Exists")),
        (True, False, not_ready("Pod is Ready; Service does not exist")),
        (True, None, not_ready("Pod is Ready; Service does not exist")),
        (False, False, ("True", "DependenciesReady", "Pod is Ready")),
    ],
)
def test_ready_follows_the_service(wanted: bool | None, exists: bool | None, value: tuple[str, str, str]) -> None:
    assert ready(box_in_mode(service=wanted), ChildrenState(READY_POD, service=exists)) == value


def test_ready_message_names_the_service_while_the_pod_is_not_ready() -> None:
    assert ready(box_in_mode(service=True), ChildrenState(service=True)) == not_ready(
        "Pod does not exist; Service Exists"
    )


def test_errors_win_over_everything_except_several_pods() -> None:
    state = ChildrenState(READY_POD, errors=("one", "two"))
    assert ready(box_in_mode("Suspended"), state) == ("False", "ReconcilerError", "Error seen: one\ntwo")


def test_several_pods_win_over_other_errors() -> None:
    message = "multiple Pods (3) are controlled by this Sandbox; refusing to choose or create a Pod"
    assert ready(box_in_mode(), ChildrenState(pod_count=3, errors=("volumes",))) == ("False", "MultiplePods", message)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "Sandbox is suspended"),
        (READY_POD, "Sandbox is suspending"),
        (pod_in_phase(pod_status("Failed")), "Sandbox is suspending"),
        (pod_in_phase(foreign=True), "Sandbox is suspending"),
    ],
    ids=["gone", "going", "ended", "edge 3: foreign"],
)
def test_ready_is_false_while_suspended(found: PodView | None, message: str) -> None:
    assert ready(box_in_mode("Suspended"), ChildrenState(found)) == ("False", "SandboxSuspended", message)


def with_conditions(*known: Object, generation: int = 1, **spec: Any) -> SandboxView:
    return SandboxView.from_object(
        sandbox_objects.sandbox(
            "box", spec=spec, metadata={"generation": generation}, status={"conditions": list(known)}
        )
    )


def test_edge_16_steady_sandbox_has_exactly_three_conditions_in_order() -> None:
    first = conditions(with_conditions(), ChildrenState(READY_POD), NOW)
    assert [condition["type"] for condition in first] == ["Suspended", "PodScheduled", "Ready"]
    assert all(condition["observedGeneration"] == 1 for condition in first)
    assert all(condition["lastTransitionTime"] == NOW for condition in first)
    again = conditions(with_conditions(*first), ChildrenState(READY_POD), "2026-01-02T04:00:00Z")
    assert again == first


def test_obsolete_conditions_are_removed_and_others_keep_their_time() -> None:
    first = conditions(with_conditions(), ChildrenState(pod_in_phase(pod_status("Failed"))), NOW)
    assert [condition["type"] for condition in first] == ["Suspended", "Finished", "PodScheduled", "Ready"]
    later = conditions(with_conditions(*first, generation=2), ChildrenState(), "2026-01-02T04:00:00Z")
    assert [(each["type"], each["observedGeneration"], each["lastTransitionTime"]) for each in later] == [
        ("Suspended", 2, NOW),
        ("Ready", 2, NOW),
    ]


def test_edge_03_foreign_pod_while_suspended_leaves_two_conditions() -> None:
    found = conditions(with_conditions(operatingMode="Suspended"), ChildrenState(pod_in_phase(foreign=True)), NOW)
    assert [(each["type"], each["reason"]) for each in found] == [
        ("Suspended", "PodNotOwned"),
        ("Ready", "SandboxSuspended"),
    ]


def test_edge_05_pod_scheduled_is_kept_after_a_failed_lookup() -> None:
    first = conditions(with_conditions(), ChildrenState(READY_POD), NOW)
    found = conditions(with_conditions(*first), POD_ERROR, NOW)
    assert [(each["type"], each["status"]) for each in found] == [
        ("Suspended", "False"),
        ("PodScheduled", "Unknown"),
        ("Ready", "False"),
    ]


def test_foreign_conditions_are_kept() -> None:
    theirs = {"type": "Audited", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": NOW}
    assert conditions(with_conditions(theirs), ChildrenState(READY_POD), NOW)[0] == theirs
