"""Rebuilds the ``PodState`` that an earlier agent left, from the status in the API.

This does not decide what runs: a container that the status calls running is running only if the runtime finds it, which
``PodResources.recover`` checks afterwards. For everything else, such as restart counts and exit codes, the API is the
authority.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sandpool.api.resource import Object
from sandpool.api.views.pod import FAILED
from sandpool.api.views.times import parse_time
from sandpool.node.pods.phase import work_finished
from sandpool.node.pods.probe_state import ProbeState
from sandpool.node.pods.resource_admission import is_shortage
from sandpool.node.pods.spec import Container, Pod, ProbeKind
from sandpool.node.pods.state import ContainerPhase, ContainerState, FailureReason, Moment, PodState, Termination
from sandpool.node.pods.unsupported_fields import REASON

# Reported for a run whose end was not observed.
_LOST = "ContainerStatusUnknown"
_LOST_CODE = 137


def restore_state(pod: Pod, now: Moment) -> PodState:
    """Return the state before any container was looked up at its runtime: none is running."""
    status = pod.object.get("status") or {}
    state = PodState.of(pod, start_time=parse_time(status.get("startTime")) or now.time)
    if status.get("phase") == FAILED and status.get("reason"):
        problem = FailureReason(status["reason"], status.get("message") or "")
        rejected = problem.reason == REASON or is_shortage(problem.reason)
        state = replace(state, rejection=problem) if rejected else replace(state, failure=problem)
    reported = {each["name"]: each for kind in _KINDS for each in status.get(kind) or ()}
    found = {each.name: _container(reported[each.name], now) for each in pod.every if each.name in reported}
    return replace(state, containers={**state.containers, **found})


def runs(pod: Pod, name: str) -> bool:
    """Whether the last status reported the container as running."""
    return "running" in (_reported(pod, name).get("state") or {})


def mark_lost(state: PodState, container: Container, now: Moment) -> PodState:
    """Record that a container reported as running no longer exists."""
    began = parse_time(
        ((_reported(state.pod, container.name).get("state") or {}).get("running") or {}).get("startedAt")
    )
    message = "The container could not be located when the node came back"
    known = state[container.name]
    termination = Termination(_LOST_CODE, _LOST, now, began, message, container_id=known.container_id)
    return state.with_container(
        container.name, phase=ContainerPhase.ENDED, termination=termination, previous=known.termination
    )


def reset_init_containers(state: PodState) -> PodState:
    """Run the init containers again, for a pod that continues with no container left. What they did may be lost too."""
    if work_finished(state):
        return state
    for container in state.pod.init:
        state = state.with_container(container.name, phase=ContainerPhase.WAITING)
    return state


def mark_running(state: PodState, container: Container, since: datetime, now: Moment) -> PodState:
    """Record a container that the runtime found running. It keeps its reported readiness until its probes disagree."""
    status = _reported(state.pod, container.name)
    ready, started = bool(status.get("ready")), bool(status.get("started"))
    age = max((now.time - since).total_seconds(), 0.0)
    begin = Moment(now.at - age, since)
    probe_states = {kind: ProbeState.begin(probe, begin.at) for kind, probe in container.probes.items()}
    if ready and ProbeKind.READINESS in probe_states:
        probe_states[ProbeKind.READINESS] = replace(probe_states[ProbeKind.READINESS], good=True, pause=None)
    if started and ProbeKind.STARTUP in probe_states:
        probe_states[ProbeKind.STARTUP] = replace(probe_states[ProbeKind.STARTUP], good=True)
    return state.with_container(container.name, phase=ContainerPhase.RUNNING, since=begin, probe_states=probe_states)


_KINDS = ("initContainerStatuses", "containerStatuses")


def _reported(pod: Pod, name: str) -> Object:
    """Return the last reported status of a container, or an empty dict."""
    status = pod.object.get("status") or {}
    found = (each for kind in _KINDS for each in status.get(kind) or () if each["name"] == name)
    return next(found, {})


def _container(status: Object, now: Moment) -> ContainerState:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    ended = _ending(state.get("terminated"), now)
    before = _ending(last.get("terminated"), now)
    return ContainerState(
        phase=ContainerPhase.WAITING if ended is None and before is None else ContainerPhase.ENDED,
        restarts=status.get("restartCount") or 0,
        termination=ended or before,
        previous=before if ended is not None else None,
        image_id=status.get("imageID") or "",
        image=status.get("image") or "",
        container_id=(status.get("containerID") or "").rpartition("/")[2],
    )


def _ending(terminated: Object | None, now: Moment) -> Termination | None:
    if terminated is None:
        return None
    time = parse_time(terminated.get("finishedAt")) or now.time
    age = max((now.time - time).total_seconds(), 0.0)
    return Termination(
        terminated.get("exitCode") or 0,
        terminated.get("reason") or "",
        Moment(now.at - age, time),
        parse_time(terminated.get("startedAt")),
        terminated.get("message") or "",
        terminated.get("signal") or 0,
        (terminated.get("containerID") or "").rpartition("/")[2],
    )
