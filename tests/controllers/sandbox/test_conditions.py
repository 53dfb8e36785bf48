from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView
from sandpool.controllers.sandbox.conditions import (
    Findings,
    Verdict,
    conditions,
    finished,
    pod_scheduled,
    ready,
    suspended,
)
from tests.support import sandbox_objects
from tests.support.sandbox_objects import pod_status

NOW = "2026-01-02T03:04:05Z"
BOX = sandbox_objects.sandbox("box")
ELSEWHERE = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}


def box(mode: str = "Running", **spec: Any) -> SandboxView:
    return SandboxView.from_object(sandbox_objects.sandbox("box", spec={"operatingMode": mode, **spec}))


def pod(status: Object | None = None, *, foreign: bool = False) -> PodView:
    metadata = {"ownerReferences": [ELSEWHERE]} if foreign else {}
    return PodView.from_object(sandbox_objects.sandbox_pod(BOX, metadata=metadata, status=status or {}))


READY_POD = pod(pod_status("Running", ready=True, ips=["10.0.0.1"]))
SERVICE_ERROR = Findings(errors=("service went wrong",))
POD_ERROR = Findings(pod_error="pod went wrong", errors=("pod went wrong",))


@pytest.mark.parametrize(
    ("mode", "findings", "verdict"),
    [
        ("Running", Findings(), ("False", "NotSuspended", "Sandbox is not suspended")),
        ("", POD_ERROR, ("False", "NotSuspended", "Sandbox is not suspended")),
        ("Suspended", Findings(), ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")),
        (
            "Suspended",
            Findings(pod(), pod_error="delete failed", errors=("delete failed",)),
            ("False", "PodTerminating", "Pod is terminating. Sandbox is suspending"),
        ),
        (
            "Suspended",
            Findings(pod(foreign=True)),
            ("False", "PodNotOwned", "Refused to delete pod because it is not owned by this sandbox"),
        ),
        (
            "Suspended",
            POD_ERROR,
            ("Unknown", "PodStateUnknown", "Pod state is unknown. Sandbox suspension cannot be confirmed"),
        ),
        (
            "Suspended",
            Findings(pod_count=2),
            ("Unknown", "PodStateUnknown", "Pod state is unknown. Sandbox suspension cannot be confirmed"),
        ),
        ("Suspended", SERVICE_ERROR, ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")),
    ],
    ids=[
        "running",
        "mode nobody knows",
        "no pod",
        "edge 4: delete failed",
        "edge 3: foreign pod",
        "edge 5: pod error",
        "two pods",
        "edge 5: service error",
    ],
)
def test_suspended(mode: str, findings: Findings, verdict: tuple[str, str, str]) -> None:
    assert suspended(box(mode), findings) == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (None, None),
        (pod(), None),
        (pod(pod_status("Running")), None),
        (pod(pod_status("Succeeded")), ("True", "PodSucceeded", "Pod completed successfully")),
        (pod(pod_status("Failed")), ("True", "PodFailed", "Pod failed")),
        (pod(pod_status("Failed"), foreign=True), None),
    ],
)
def test_finished(found: PodView | None, verdict: tuple[str, str, str] | None) -> None:
    assert finished(box(), Findings(found)) == verdict


NOT_REPORTED = ("Unknown", "PodSchedulingUnknown", "Pod has not reported a PodScheduled condition yet")
UNDETERMINED = ("Unknown", "PodSchedulingUnknown", "Pod state is unknown. Pod scheduling cannot be determined")


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        (Findings(), None),
        (Findings(pod(pod_status("Running"), foreign=True)), None),
        (Findings(pod()), NOT_REPORTED),
        (POD_ERROR, UNDETERMINED),
        (Findings(pod_count=2), UNDETERMINED),
        (SERVICE_ERROR, None),
        (Findings(pod(pod_status("Pending", scheduled="True"))), ("True", "PodScheduled", "")),
        (Findings(pod(pod_status("Pending", scheduled="False"))), ("False", "PodSchedulingUnknown", "")),
        (Findings(pod(pod_status("Pending", scheduled="Unknown"))), ("Unknown", "PodSchedulingUnknown", "")),
        (
            Findings(pod(pod_status("Pending", scheduled="False", reason="Unschedulable", message="0/3 nodes"))),
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
def test_pod_scheduled(findings: Findings, verdict: tuple[str, str, str] | None) -> None:
    assert pod_scheduled(box(), findings) == verdict


def not_ready(message: str) -> Verdict:
    return Verdict("False", "DependenciesNotReady", message)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (None, not_ready("Pod does not exist")),
        (pod(), not_ready("Pod exists with phase: ")),
        (pod(pod_status("Pending")), not_ready("Pod exists with phase: Pending")),
        (pod(pod_status("Unknown")), not_ready("Pod exists with phase: Unknown")),
        (pod(pod_status("Running", ips=["10.0.0.1"])), not_ready("Pod is Running but not Ready")),
        (pod(pod_status("Running", ready=True)), not_ready("Pod is Ready but has no podIPs yet")),
        (READY_POD, ("True", "DependenciesReady", "Pod is Ready")),
        (pod(pod_status("Succeeded")), ("False", "PodSucceeded", "Pod completed successfully")),
        (pod(pod_status("Failed")), ("False", "PodFailed", "Pod failed")),
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
def test_ready_follows_the_pod(found: PodView | None, verdict: tuple[str, str, str]) -> None:
    assert ready(box(), Findings(found)) == verdict


@pytest.mark.parametrize(
    ("wanted", "exists", "verdict"),
    [
        (None, False, ("True", "DependenciesReady", "Pod is Ready")),
        (None, True, ("True", "DependenciesReady", "Pod is Ready; Service Exists")),
        (True, True, ("True", "DependenciesReady", "Pod is Ready; Service Exists")),
        (True, False, not_ready("Pod is Ready; Service does not exist")),
        (True, None, not_ready("Pod is Ready; Service does not exist")),
        (False, False, ("True", "DependenciesReady", "Pod is Ready")),
    ],
)
def test_ready_follows_the_service(wanted: bool | None, exists: bool | None, verdict: tuple[str, str, str]) -> None:
    assert ready(box(service=wanted), Findings(READY_POD, service=exists)) == verdict


def test_the_service_is_mentioned_also_while_the_pod_is_not_ready() -> None:
    assert ready(box(service=True), Findings(service=True)) == not_ready("Pod does not exist; Service Exists")


def test_errors_come_before_everything_but_several_pods() -> None:
    findings = Findings(READY_POD, errors=("one", "two"))
    assert ready(box("Suspended"), findings) == ("False", "ReconcilerError", "Error seen: one\ntwo")


def test_several_pods_are_told_alone_even_with_other_errors() -> None:
    message = "multiple Pods (3) are controlled by this Sandbox; refusing to choose or create a Pod"
    assert ready(box(), Findings(pod_count=3, errors=("volumes",))) == ("False", "MultiplePods", message)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "Sandbox is suspended"),
        (READY_POD, "Sandbox is suspending"),
        (pod(pod_status("Failed")), "Sandbox is suspending"),
        (pod(foreign=True), "Sandbox is suspending"),
    ],
    ids=["gone", "going", "ended", "edge 3: foreign"],
)
def test_ready_while_suspended(found: PodView | None, message: str) -> None:
    assert ready(box("Suspended"), Findings(found)) == ("False", "SandboxSuspended", message)


def with_conditions(*known: Object, generation: int = 1, **spec: Any) -> SandboxView:
    return SandboxView.from_object(
        sandbox_objects.sandbox(
            "box", spec=spec, metadata={"generation": generation}, status={"conditions": list(known)}
        )
    )


def test_edge_16_a_steady_sandbox_has_exactly_three_in_order() -> None:
    first = conditions(with_conditions(), Findings(READY_POD), NOW)
    assert [condition["type"] for condition in first] == ["Suspended", "PodScheduled", "Ready"]
    assert all(condition["observedGeneration"] == 1 for condition in first)
    assert all(condition["lastTransitionTime"] == NOW for condition in first)
    again = conditions(with_conditions(*first), Findings(READY_POD), "2026-01-02T04:00:00Z")
    assert again == first


def test_conditions_that_no_longer_hold_go_and_others_keep_their_time() -> None:
    first = conditions(with_conditions(), Findings(pod(pod_status("Failed"))), NOW)
    assert [condition["type"] for condition in first] == ["Suspended", "Finished", "PodScheduled", "Ready"]
    later = conditions(with_conditions(*first, generation=2), Findings(), "2026-01-02T04:00:00Z")
    assert [(each["type"], each["observedGeneration"], each["lastTransitionTime"]) for each in later] == [
        ("Suspended", 2, NOW),
        ("Ready", 2, NOW),
    ]


def test_edge_03_a_foreign_pod_while_suspended_leaves_two_conditions() -> None:
    found = conditions(with_conditions(operatingMode="Suspended"), Findings(pod(foreign=True)), NOW)
    assert [(each["type"], each["reason"]) for each in found] == [
        ("Suspended", "PodNotOwned"),
        ("Ready", "SandboxSuspended"),
    ]


def test_edge_05_after_a_failed_lookup_pod_scheduled_stays() -> None:
    first = conditions(with_conditions(), Findings(READY_POD), NOW)
    found = conditions(with_conditions(*first), POD_ERROR, NOW)
    assert [(each["type"], each["status"]) for each in found] == [
        ("Suspended", "False"),
        ("PodScheduled", "Unknown"),
        ("Ready", "False"),
    ]


def test_conditions_of_others_are_left_alone() -> None:
    theirs = {"type": "Audited", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": NOW}
    assert conditions(with_conditions(theirs), Findings(READY_POD), NOW)[0] == theirs
