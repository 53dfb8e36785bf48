"""The printer of Pods: the one-word status summarises the states of all containers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandpool.api.resource import Object
from sandpool.server.tables.age import age
from sandpool.server.tables.printer import (
    AGE,
    NAME,
    NONE,
    Printer,
    TableColumn,
    age_of,
    condition,
    name_of,
    value_at,
    wide,
)


@dataclass(slots=True)
class _ContainerSummary:
    """The summary of the containers inspected so far."""

    reason: str
    ready: int = 0
    restarts: int = 0
    last_restart: str = ""  # RFC 3339 in UTC, so the latest is the greatest

    def count_restarts(self, status: Object) -> None:
        self.restarts += status.get("restartCount") or 0
        self.last_restart = max(self.last_restart, value_at(status, "lastState", "terminated", "finishedAt") or "")

    def restarts_text(self, now: datetime) -> str:
        if self.restarts and self.last_restart:
            return f"{self.restarts} ({age(self.last_restart, now)} ago)"
        return str(self.restarts)


def _cells(pod: Object, now: datetime) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    summary, running = _ContainerSummary(_summary(pod)), _ContainerSummary("")
    initializing = _add_init_containers(summary, running, spec, status, sidecars)
    if not initializing or _is_true(condition(pod, "Initialized")):
        # After initialization only the restarts of sidecars and regular containers count.
        running.reason, running.ready = summary.reason, summary.ready
        summary = running
        _add_containers(summary, pod)
    terminal = status.get("phase") in ("Succeeded", "Failed")
    if value_at(pod, "metadata", "deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            summary.reason = "Unknown"
        elif not terminal:
            summary.reason = "Terminating"
    return [
        name_of(pod),
        f"{summary.ready}/{len(spec.get('containers') or ()) + len(sidecars)}",
        summary.reason,
        summary.restarts_text(now),
        age_of(pod, now),
        next((ip.get("ip") for ip in status.get("podIPs") or ()), "") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _readiness_gates(pod),
    ]


def _summary(pod: Object) -> str:
    """The status of the pod on its own, before its containers are inspected."""
    if (scheduled := condition(pod, "PodScheduled")) and scheduled.get("reason") == "SchedulingGated":
        return "SchedulingGated"
    return value_at(pod, "status", "reason") or value_at(pod, "status", "phase") or ""


def _add_init_containers(
    summary: _ContainerSummary, running: _ContainerSummary, spec: Object, status: Object, sidecars: set[str]
) -> bool:
    """Inspect the init containers up to the first that is not done; returns whether there is one.

    ``running`` collects the restarts of sidecars only.
    """
    for index, container in enumerate(status.get("initContainerStatuses") or ()):
        summary.count_restarts(container)
        if container["name"] in sidecars:
            running.count_restarts(container)
        terminated, waiting = (
            value_at(container, "state", "terminated"),
            value_at(container, "state", "waiting", "reason"),
        )
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if container["name"] in sidecars and container.get("started"):
            summary.ready += bool(container.get("ready"))
            continue
        if terminated:
            summary.reason = "Init:" + _exit_text(terminated)
        elif waiting and waiting != "PodInitializing":
            summary.reason = "Init:" + waiting
        else:
            summary.reason = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        return True
    return False


def _add_containers(summary: _ContainerSummary, pod: Object) -> None:
    """Inspect the containers from last to first, so that the reason of the first one wins."""
    some_run, failure = False, ""
    for container in reversed(value_at(pod, "status", "containerStatuses") or []):
        summary.count_restarts(container)
        terminated, waiting = (
            value_at(container, "state", "terminated"),
            value_at(container, "state", "waiting", "reason"),
        )
        if waiting:
            summary.reason = waiting
        elif terminated is not None:
            summary.reason = _exit_text(terminated)
            if terminated.get("exitCode"):
                failure = summary.reason
        elif container.get("ready") and value_at(container, "state", "running") is not None:
            some_run = True
            summary.ready += 1
    if summary.reason == "Completed":  # of one container; others may still run
        if some_run and _is_true(condition(pod, "Ready")):
            summary.reason = "Running"
        elif failure or some_run:
            summary.reason = failure or "NotReady"


def _exit_text(terminated: Object) -> str:
    if reason := terminated.get("reason"):
        return str(reason)
    if signal := terminated.get("signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{terminated.get('exitCode') or 0}"


def _readiness_gates(pod: Object) -> str:
    gates: Iterable[Object] = value_at(pod, "spec", "readinessGates") or ()
    passed = [_is_true(condition(pod, gate["conditionType"])) for gate in gates]
    return f"{sum(passed)}/{len(passed)}" if passed else NONE


def _is_true(condition: Object | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _conditions(pod: Object) -> list[Object]:
    phase = value_at(pod, "status", "phase")
    if phase == "Succeeded":
        message = "The pod has completed successfully."
    elif phase == "Failed":
        message = "The pod failed."
    else:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


PRINTERS = {
    "pods": Printer(
        (
            NAME,
            TableColumn("Ready"),
            TableColumn("Status"),
            TableColumn("Restarts"),
            AGE,
            wide("IP"),
            wide("Node"),
            wide("Nominated Node"),
            wide("Readiness Gates"),
        ),
        _cells,
        _conditions,
    )
}
