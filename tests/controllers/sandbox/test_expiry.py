from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandpool.api.kinds import POD, SANDBOX, SERVICE
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView, ServiceView
from sandpool.controllers.sandbox.expiry import (
    ExpiryPlan,
    has_expired,
    is_marked_expired,
    mark_expired,
    plan_expiry,
    time_to_expiry,
)
from sandpool.controllers.writer import Delete
from sandpool.kube.patches import merge_patch
from tests.support import sandbox_objects

END = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOW = "2026-01-02T03:04:05Z"
EARLIER = "2026-01-01T00:00:00Z"


def condition(type: str, status: str, reason: str, message: str = "") -> Object:
    return {
        "type": type,
        "status": status,
        "observedGeneration": 1,
        "lastTransitionTime": EARLIER,
        "reason": reason,
        "message": message,
    }


EXPIRED = condition("Ready", "False", "SandboxExpired", "Sandbox has expired")
SUSPENDED = condition("Suspended", "False", "NotSuspended")
FINISHED = condition("Finished", "True", "PodFailed")
SCHEDULED = condition("PodScheduled", "True", "PodScheduled")


def box(*conditions: Object, status: Object | None = None, policy: str = "Retain", **metadata: Any) -> Object:
    return sandbox_objects.sandbox(
        "box",
        spec={"shutdownTime": NOW, "shutdownPolicy": policy},
        metadata=metadata,
        status={"conditions": list(conditions), **(status or {})},
    )


def view(sandbox: Object) -> SandboxView:
    return SandboxView.from_object(sandbox)


def planned(sandbox: Object, *pods: Object, service: Object | None = None) -> ExpiryPlan:
    found = None if service is None else ServiceView.from_object(service)
    return plan_expiry(view(sandbox), [PodView.from_object(pod) for pod in pods], found, NOW)


@pytest.mark.parametrize(("offset", "is_expired"), [(-0.001, False), (0, True), (0.001, True)])
def test_edge_06_r48_sandbox_expires_at_the_shutdown_time_itself(offset: float, is_expired: bool) -> None:
    assert has_expired(view(box()), END + timedelta(seconds=offset)) is is_expired


def test_sandbox_without_shutdown_time_does_not_expire() -> None:
    endless = view(sandbox_objects.sandbox("box"))
    assert not has_expired(endless, END)
    assert time_to_expiry(endless, END) is None


@pytest.mark.parametrize(("ahead", "wait"), [(0.5, 2), (2, 2), (60, 60)])
def test_edge_06_requeue_is_at_least_two_seconds_away(ahead: float, wait: float) -> None:
    assert time_to_expiry(view(box()), END - timedelta(seconds=ahead)) == timedelta(seconds=wait)


def test_edge_06_expiry_keeps_finished_and_removes_pod_scheduled() -> None:
    ready = condition("Ready", "True", "DependenciesReady", "Pod is Ready")
    sandbox = view(box(SUSPENDED, FINISHED, SCHEDULED, ready, status={"podIPs": ["10.0.0.1"]}))
    assert not is_marked_expired(sandbox)
    status = mark_expired(sandbox, sandbox.status, NOW)
    assert status.conditions == [SUSPENDED, FINISHED, {**EXPIRED, "lastTransitionTime": NOW}]
    assert status.pod_ips == ("10.0.0.1",)


def test_marked_sandbox_is_recognised() -> None:
    assert is_marked_expired(view(box(EXPIRED)))


def test_second_reconcile_deletes_own_pods_and_the_own_service() -> None:
    sandbox = box(EXPIRED)
    plan = planned(
        sandbox, sandbox_objects.sandbox_pod(sandbox, "adopted"), service=sandbox_objects.sandbox_service(sandbox)
    )
    assert plan.children == (Delete(POD, "adopted", "pod-adopted"), Delete(SERVICE, "box", "service-box"))
    assert plan.sandbox is None


def test_foreign_service_survives() -> None:
    sandbox = box(EXPIRED)
    for owner in (None, sandbox_objects.sandbox("other")):
        service = sandbox_objects.sandbox_service(owner or sandbox)
        if owner is None:
            service["metadata"]["ownerReferences"] = []
        assert planned(sandbox, service=service).children == ()


def test_edge_07_retained_sandbox_keeps_only_conditions() -> None:
    status = {
        "nodeName": "n",
        "podIPs": ["10.0.0.1"],
        "selector": "a=b",
        "service": "box",
        "serviceFQDN": "box.default.svc.cluster.local",
    }
    sandbox = box(SUSPENDED, FINISHED, EXPIRED, status=status)
    plan = planned(sandbox)
    assert plan.status_patch == {"status": dict.fromkeys(status)}
    after = merge_patch(sandbox, plan.status_patch)
    assert after["status"] == {"conditions": [SUSPENDED, FINISHED, EXPIRED]}
    assert planned(after) == ExpiryPlan((), None, None)


def test_repeated_reconcile_only_reads_while_the_pod_terminates() -> None:
    sandbox = box(EXPIRED)
    deleting = {"deletionTimestamp": NOW}
    pod = sandbox_objects.sandbox_pod(sandbox, metadata=deleting)
    service = sandbox_objects.sandbox_service(sandbox, metadata=deleting)
    assert planned(sandbox, pod, service=service) == ExpiryPlan((), None, None)


def test_policy_delete_deletes_the_sandbox_and_writes_no_status() -> None:
    sandbox = box(EXPIRED, policy="Delete", status={"nodeName": "n"})
    plan = planned(sandbox, sandbox_objects.sandbox_pod(sandbox))
    assert plan.children == (Delete(POD, "box", "pod-box"),)
    assert plan.sandbox == Delete(SANDBOX, "box", "sandbox-box")
    assert plan.status_patch is None


@pytest.mark.parametrize("policy", ["Retain", "", "Archive"])
def test_any_other_policy_retains_the_sandbox(policy: str) -> None:
    assert planned(box(EXPIRED, policy=policy)).sandbox is None
