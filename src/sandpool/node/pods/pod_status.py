"""Computes the status of a pod as a kubelet reports it, from its ``PodState``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from sandpool.api.conditions import FALSE, POD_FROZEN, POD_SCHEDULED, READY, TRUE, find_condition
from sandpool.api.events import go_duration
from sandpool.api.labels import IDLE_FREEZE_AFTER
from sandpool.api.resource import Object
from sandpool.api.views.pod import FAILED, SUCCEEDED
from sandpool.engine.clock import timestamp
from sandpool.node.pods.backoff import restart_at
from sandpool.node.pods.phase import initialized, phase, waiting_for
from sandpool.node.pods.spec import Container
from sandpool.node.pods.state import (
    CRASH_LOOP,
    CREATING,
    INITIALIZING,
    NOT_PULLED,
    PULL_BACK_OFF,
    ContainerPhase,
    ContainerState,
    FailureReason,
    Moment,
    PodState,
    Termination,
)

READY_TO_START: Final = "PodReadyToStartContainers"
INITIALIZED: Final = "Initialized"
CONTAINERS_READY: Final = "ContainersReady"

_ID_SCHEME: Final = "sandpool://"


def compute_pod_status(state: PodState, now: Moment, host_ips: Sequence[str], before: Object) -> Object:
    """Return the status. ``before`` is the status in the API: conditions keep their transition times, and conditions of
    other controllers decide about readiness gates."""
    reached = phase(state)
    status: Object = {"phase": reached}
    problem = state.rejection or state.failure
    if problem is not None and reached == FAILED:
        status |= {"reason": problem.reason, "message": problem.message}
    if state.start_time is not None:
        status["startTime"] = timestamp(state.start_time)
    if host_ips:
        status |= {"hostIP": host_ips[0], "hostIPs": [{"ip": ip} for ip in host_ips]}
    if ips := state.preparation.addresses:
        status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
    if state.rejection is None:
        if state.pod.init:
            status["initContainerStatuses"] = [_container(state, each, now) for each in state.pod.init]
        status["containerStatuses"] = [_container(state, each, now) for each in state.pod.containers]
    known = before.get("conditions") or []
    status["conditions"] = [_since(condition, known, now.time) for condition in _conditions(state, reached, known)]
    return status


def is_ready(status: Object) -> bool:
    condition = find_condition(status.get("conditions") or [], READY)
    return condition is not None and condition["status"] == TRUE


# -- conditions ----------------------------------------------------------------------------------------------------


def _conditions(state: PodState, reached: str, known: list[Object]) -> list[Object]:
    unready = [each.name for each in state.pod.containers if not state[each.name].ready]
    unready += [each.name for each in state.pod.init if each.sidecar and not state[each.name].ready]
    containers_ready = _containers_ready(reached, unready)
    return [
        _condition(READY_TO_START, state.preparation.done and not state.released),
        _initialized(state, reached),
        {**_ready(state, containers_ready, known), "type": READY},
        {**containers_ready, "type": CONTAINERS_READY},
        _condition(POD_SCHEDULED, True),
        *_frozen(state, known),
    ]


def _frozen(state: PodState, known: list[Object]) -> Iterable[Object]:
    """The condition that pods have from the first time on that they sleep for long enough to be reported."""
    if state.asleep:
        after = (state.pod.object["metadata"].get("annotations") or {}).get(IDLE_FREEZE_AFTER, "")
        yield _condition(POD_FROZEN, True, "NotUsed", f"It was not used for {after}. The next request thaws it")
    elif find_condition(known, POD_FROZEN) is not None:
        yield _condition(POD_FROZEN, False, "InUse")


def _initialized(state: PodState, reached: str) -> Object:
    if reached == SUCCEEDED:
        return _condition(INITIALIZED, True, "PodCompleted")
    if initialized(state) and state.rejection is None:
        return _condition(INITIALIZED, True)
    missing = " ".join(container.name for container in waiting_for(state))
    message = f"containers with incomplete status: [{missing}]"
    return _condition(INITIALIZED, False, "ContainersNotInitialized", message)


def _containers_ready(reached: str, unready: list[str]) -> Object:
    if reached == SUCCEEDED:
        return _condition(CONTAINERS_READY, False, "PodCompleted")
    if reached == FAILED:
        return _condition(CONTAINERS_READY, False, "PodFailed")
    if unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        return _condition(CONTAINERS_READY, False, "ContainersNotReady", message)
    return _condition(CONTAINERS_READY, True)


def _ready(state: PodState, containers_ready: Object, known: list[Object]) -> Object:
    if containers_ready["status"] == FALSE:
        return containers_ready
    gates = [gate["conditionType"] for gate in state.pod.object["spec"].get("readinessGates") or ()]
    for gate in gates:
        condition = find_condition(known, gate)
        if condition is None:
            return _condition(
                READY,
                False,
                "ReadinessGatesNotReady",
                f'corresponding condition of pod readiness gate "{gate}" does not exist.',
            )
        if condition.get("status") != TRUE:
            message = f'the status of pod readiness gate "{gate}" is not "True", but {condition.get("status")}'
            return _condition(READY, False, "ReadinessGatesNotReady", message)
    return _condition(READY, True)


def _condition(type: str, status: bool, reason: str = "", message: str = "") -> Object:
    found = {"type": type, "status": TRUE if status else FALSE}
    if reason:
        found["reason"] = reason
    if message:
        found["message"] = message
    return found


def _since(condition: Object, known: Iterable[Object], now: datetime) -> Object:
    before = find_condition(list(known), condition["type"])
    same = before is not None and before.get("status") == condition["status"] and before.get("lastTransitionTime")
    since = before["lastTransitionTime"] if before is not None and same else timestamp(now)
    return {**condition, "lastTransitionTime": since}


# -- containers ----------------------------------------------------------------------------------------------------


def _container(state: PodState, container: Container, now: Moment) -> Object:
    known = state[container.name]
    current, last = _states(state, container, now)
    completed = (
        container.init and not container.sidecar and known.termination is not None and known.termination.exit_code == 0
    )
    found: Object = {
        "name": container.name,
        "image": container.image,
        "imageID": known.image_id,
        "ready": completed if container.init and not container.sidecar else known.ready,
        "restartCount": known.restarts,
        "started": known.started,
        "state": current,
        "lastState": last,
    }
    if known.container_id:
        found["containerID"] = _ID_SCHEME + known.container_id
    return found


def _states(state: PodState, container: Container, now: Moment) -> tuple[Object, Object]:
    """Return ``state`` and ``lastState`` of a container."""
    known = state[container.name]
    if known.phase is ContainerPhase.RUNNING and known.since is not None:
        return {"running": {"startedAt": timestamp(known.since.time)}}, _terminated(known.termination)
    if known.termination is None:
        return {"waiting": _waiting(state, container, known)}, {}
    if known.problem is not None and not state.stopping:
        return {"waiting": _trouble(container, known.problem, known.failures)}, _terminated(known.termination)
    if _in_backoff(state, container, known, now):
        assert known.backoff is not None
        message = (
            f"back-off {go_duration(known.backoff.pause)} restarting failed container={container.name} "
            f"pod={state.pod.key.name}_{state.pod.key.namespace}({state.pod.uid})"
        )
        return {"waiting": _words(CRASH_LOOP, message)}, _terminated(known.termination)
    if state.outdated(container) and not state.stopping:
        # It will run again. The API server rejects that after "terminated" if the restart policy is Never.
        return {"waiting": _words(CREATING)}, _terminated(known.termination)
    return _terminated(known.termination), _terminated(known.previous)


def _in_backoff(state: PodState, container: Container, known: ContainerState, now: Moment) -> bool:
    termination = known.termination
    if termination is None or known.phase is not ContainerPhase.ENDED or known.backoff is None or state.stopping:
        return False
    return state.pod.restarts(container, termination.exit_code) and now.at < restart_at(
        known.backoff, termination.finished.at
    )


def _waiting(state: PodState, container: Container, known: ContainerState) -> Object:
    if known.problem is not None:
        return _trouble(container, known.problem, known.failures)
    if state.preparation.problem is not None:
        return _words(CREATING, state.preparation.problem.message)
    if not container.init and state.pod.init and not initialized(state):
        return _words(INITIALIZING)
    return _words(CREATING if not container.init or container is state.pod.init[0] else INITIALIZING)


def _trouble(container: Container, problem: FailureReason, failures: int) -> Object:
    """Return the waiting state after a failed start. A repeated failure to pull is always reported as ImagePullBackOff.
    A kubelet alternates between that and ErrImagePull while it waits and tries, which would cost a write each time."""
    if problem.reason == NOT_PULLED and failures > 1:
        words = f'Back-off pulling image "{container.image}": {NOT_PULLED}: {problem.message}'
        return _words(PULL_BACK_OFF, words)
    return _words(problem.reason, problem.message)


def _words(reason: str, message: str = "") -> Object:
    return {"reason": reason, "message": message} if message else {"reason": reason}


def _terminated(termination: Termination | None) -> Object:
    if termination is None:
        return {}
    found: Object = {"exitCode": termination.exit_code, "reason": termination.reason}
    if termination.signal:
        found["signal"] = termination.signal
    if termination.message:
        found["message"] = termination.message
    if termination.started is not None:
        found["startedAt"] = timestamp(termination.started)
    found["finishedAt"] = timestamp(termination.finished.time)
    if termination.container_id:
        found["containerID"] = _ID_SCHEME + termination.container_id
    return {"terminated": found}
