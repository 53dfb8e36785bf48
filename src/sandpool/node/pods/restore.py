"""The life of a pod as an earlier agent left it, read from the status in the API.

What runs is not decided here: a container that the status says runs is running only if the runtime finds it, which the
worker looks for afterwards. Everything else, such as how often it was restarted and how it ended, the API knows best.
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
from sandpool.node.pods.state import ContainerPhase, ContainerState, Moment, PodState, Problem, Termination
from sandpool.node.pods.unsupported_fields import REASON

# What is said of a run that nobody saw the end of.
_LOST = "ContainerStatusUnknown"
_LOST_CODE = 137


def restore_state(pod: Pod, now: Moment) -> PodState:
    """Before anything was looked for: nothing runs."""
    status = pod.object.get("status") or {}
    state = PodState.of(pod, start_time=parse_time(status.get("startTime")) or now.time)
    if status.get("phase") == FAILED and status.get("reason"):
        problem = Problem(status["reason"], status.get("message") or "")
        refused = problem.reason == REASON or is_shortage(problem.reason)
        state = replace(state, refusal=problem) if refused else replace(state, failure=problem)
    reported = {each["name"]: each for kind in _KINDS for each in status.get(kind) or ()}
    found = {each.name: _container(reported[each.name], now) for each in pod.every if each.name in reported}
    return replace(state, containers={**state.containers, **found})


def runs(pod: Pod, name: str) -> bool:
    """Whether a container ran when it was last reported."""
    return "running" in (_reported(pod, name).get("state") or {})


def mark_lost(state: PodState, container: Container, now: Moment) -> PodState:
    """A container ran when it was last reported, and nothing is left of it."""
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
    """Of a pod of which nothing runs any more, and which is to go on: what its init containers did may be gone, too."""
    if work_finished(state):
        return state
    for container in state.pod.init:
        state = state.with_container(container.name, phase=ContainerPhase.WAITING)
    return state


def mark_running(state: PodState, container: Container, since: datetime, now: Moment) -> PodState:
    """A container that runs. It is as ready as it was said to be, until its probes say otherwise."""
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
    """The last status of a container; empty if there is none."""
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
