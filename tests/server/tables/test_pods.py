from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.server.resources import Resource
from sandpool.server.tables import table

AN_HOUR_AGO = "2026-11-16T07:00:00Z"
RUNNING: Object = {"running": {"startedAt": AN_HOUR_AGO}}
READY: Object = {"conditions": [{"type": "Ready", "status": "True"}]}


def terminated(code: int, reason: str = "", signal: int = 0, at: str = AN_HOUR_AGO) -> Object:
    fields: Object = {"exitCode": code, "finishedAt": at}
    if reason:
        fields["reason"] = reason
    if signal:
        fields["signal"] = signal
    return {"terminated": fields}


def waiting(reason: str) -> Object:
    return {"waiting": {"reason": reason}}


def container(name: str, state: Object, last: Object | None = None, **fields: Any) -> Object:
    return {"name": name, "state": state, "lastState": last or {}, "restartCount": 0, "ready": False, **fields}


def running(name: str, **fields: Any) -> Object:
    return container(name, RUNNING, ready=True, **fields)


def pod(spec: Object | None = None, metadata: Object | None = None, **status: Any) -> Object:
    containers = [{"name": "a"}, {"name": "b"}]
    return {"metadata": metadata or {}, "spec": {"containers": containers, **(spec or {})}, "status": status}


WITH_SIDECAR: Object = {"initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]}
SIDECAR = running("s", started=True)
DELETED: Object = {"deletionTimestamp": AN_HOUR_AGO}


# Ready, Status and Restarts as a kube-apiserver 1.36 printed them.
@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (pod(phase="Pending"), ["0/2", "Pending", "0"]),
        (pod(phase="Failed", reason="Evicted"), ["0/2", "Evicted", "0"]),
        (
            pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
            ["0/2", "SchedulingGated", "0"],
        ),
        (
            pod(phase="Running", containerStatuses=[running("a"), running("b", restartCount=3)]),
            ["2/2", "Running", "3"],
        ),
        (
            pod(
                phase="Running",
                containerStatuses=[
                    container("a", waiting("CrashLoopBackOff"), terminated(2), restartCount=5),
                    running("b"),
                ],
            ),
            ["1/2", "CrashLoopBackOff", "5 (60m ago)"],
        ),
        (
            pod(
                phase="Succeeded",
                containerStatuses=[container(name, terminated(0, "Completed")) for name in ("a", "b")],
            ),
            ["0/2", "Completed", "0"],
        ),
        (
            pod(phase="Running", containerStatuses=[container("a", terminated(0, "Completed")), running("b")], **READY),
            ["1/2", "Running", "0"],
        ),
        (
            pod(phase="Running", containerStatuses=[container("a", terminated(0, "Completed")), running("b")]),
            ["1/2", "NotReady", "0"],
        ),
        (
            pod(
                phase="Running",
                containerStatuses=[
                    container("a", terminated(0, "Completed")),
                    container("b", terminated(3, "Error")),
                ],
            ),
            ["0/2", "Error", "0"],
        ),
        (
            pod(
                phase="Failed",
                containerStatuses=[container("a", terminated(0, signal=9)), container("b", terminated(137))],
            ),
            ["0/2", "Signal:9", "0"],
        ),
        (pod(phase="Failed", containerStatuses=[container("a", terminated(137))]), ["0/2", "ExitCode:137", "0"]),
        (
            pod(
                WITH_SIDECAR,
                phase="Pending",
                initContainerStatuses=[
                    running("s", started=True, restartCount=2, last=terminated(1)),
                    container("i", waiting("PodInitializing")),
                ],
            ),
            ["1/3", "Init:1/2", "2 (60m ago)"],
        ),
        (
            pod(WITH_SIDECAR, phase="Pending", initContainerStatuses=[container("s", waiting("ErrImagePull"))]),
            ["0/3", "Init:ErrImagePull", "0"],
        ),
        (
            pod(WITH_SIDECAR, phase="Pending", initContainerStatuses=[SIDECAR, container("i", terminated(4))]),
            ["1/3", "Init:ExitCode:4", "0"],
        ),
        (
            pod(
                WITH_SIDECAR,
                phase="Pending",
                initContainerStatuses=[SIDECAR, container("i", terminated(4, signal=11))],
            ),
            ["1/3", "Init:Signal:11", "0"],
        ),
        (
            pod(
                WITH_SIDECAR,
                phase="Pending",
                initContainerStatuses=[
                    SIDECAR,
                    container("i", terminated(4, "OOMKilled"), terminated(1), restartCount=1),
                ],
            ),
            ["1/3", "Init:OOMKilled", "1 (60m ago)"],
        ),
        (
            # Restarts of an init container are forgotten once it is done; those of a sidecar are not.
            pod(
                WITH_SIDECAR,
                phase="Running",
                initContainerStatuses=[
                    running("s", started=True, restartCount=1, last=terminated(1)),
                    container("i", terminated(0, "Completed"), restartCount=7),
                ],
                containerStatuses=[
                    running("a"),
                    running("b", restartCount=1, last=terminated(1, at="2026-11-16T07:30:00Z")),
                ],
            ),
            ["3/3", "Running", "2 (30m ago)"],
        ),
        (pod(metadata=DELETED, phase="Running", containerStatuses=[running("a")]), ["1/2", "Terminating", "0"]),
        (pod(metadata=DELETED, phase="Succeeded"), ["0/2", "Succeeded", "0"]),
        (pod(metadata=DELETED, phase="Running", reason="NodeLost"), ["0/2", "Unknown", "0"]),
    ],
)
def test_pod_has_readiness_status_and_restarts(
    cells: Callable[..., list[Any]], obj: Object, expected: list[str]
) -> None:
    assert cells(POD, obj)[1:4] == expected


def test_wide_pod_has_addresses_node_and_gates(cells: Callable[..., list[Any]]) -> None:
    obj = pod(
        {"nodeName": "n1", "readinessGates": [{"conditionType": "x/a"}, {"conditionType": "x/b"}]},
        phase="Running",
        podIPs=[{"ip": "10.1.2.3"}],
        conditions=[{"type": "x/a", "status": "True"}],
    )
    assert cells(POD, obj)[4:] == ["10m", "10.1.2.3", "n1", "<none>", "1/2"]
    assert cells(POD, pod())[5:] == ["<none>"] * 4


@pytest.mark.parametrize(
    ("phase", "message"), [("Succeeded", "The pod has completed successfully."), ("Failed", "The pod failed.")]
)
def test_finished_pod_has_a_completed_condition(
    served: Callable[..., Resource], now: datetime, phase: str, message: str
) -> None:
    (row,) = table(served(POD), [pod(phase=phase)], now=now)["rows"]
    assert row["conditions"] == [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


def test_running_pod_has_no_condition(served: Callable[..., Resource], now: datetime) -> None:
    (row,) = table(served(POD), [pod(phase="Running")], now=now)["rows"]
    assert "conditions" not in row
