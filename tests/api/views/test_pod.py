from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.views import PodView, Scheduling


def pod(spec: dict[str, Any] | None = None, **status: Any) -> PodView:
    return PodView.from_object({"metadata": {"name": "box"}, "spec": spec or {}, "status": status})


def test_running_pod_is_viewed() -> None:
    view = pod(
        {"nodeName": "node-1", "containers": []},
        phase="Running",
        podIPs=[{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        conditions=[
            {"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"},
        ],
    )
    assert (view.node_name, view.phase, view.ready) == ("node-1", "Running", True)
    assert view.ips == ("10.0.0.1", "fd00::1")
    assert view.scheduling == Scheduling("True", "", "")
    assert not view.unschedulable
    assert not view.ended


def test_pod_without_status_is_viewed() -> None:
    view = PodView.from_object({"metadata": {"name": "box"}})
    assert (view.node_name, view.phase, view.ips, view.ready, view.scheduling) == ("", "", (), False, None)


def test_unschedulable_pod_is_viewed() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    view = pod(phase="Pending", conditions=[condition])
    assert view.unschedulable
    assert view.scheduling == Scheduling("False", "Unschedulable", "0/3 nodes")


def test_gated_pod_is_not_unschedulable() -> None:
    assert not pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]).unschedulable


@pytest.mark.parametrize(
    ("phase", "ended"), [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True), ("", False)]
)
def test_pod_has_ended_in_final_phases(phase: str, ended: bool) -> None:
    assert pod(phase=phase).ended is ended


def test_pod_view_ignores_the_containers() -> None:
    assert pod({"containers": [{"name": "a"}]}) == pod({"containers": [{"name": "b"}]})
