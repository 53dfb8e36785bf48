"""The status of a pod as a kubelet reports it, made from its ``Life``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from sandpool.api.conditions import FALSE, POD_SCHEDULED, READY, TRUE, find_condition
from sandpool.api.events import go_duration
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
    ContainerLife,
    Ending,
    Life,
    Moment,
    Problem,
    Stage,
)

READY_TO_START: Final = "PodReadyToStartContainers"
INITIALIZED: Final = "Initialized"
CONTAINERS_READY: Final = "ContainersReady"

_ID_SCHEME: Final = "sandpool://"


def report(life: Life, now: Moment, host_ips: Sequence[str], before: Object) -> Object:
    """The status. ``before`` is what the API has: conditions keep the time since when they are so, and those of others
    decide about readiness gates."""
    reached = phase(life)
    status: Object = {"phase": reached}
    problem = life.refusal or life.doom
    if problem is not None and reached == FAILED:
        status |= {"reason": problem.reason, "message": problem.message}
    if life.begun is not None:
        status["startTime"] = timestamp(life.begun)
    if host_ips:
        status |= {"hostIP": host_ips[0], "hostIPs": [{"ip": ip} for ip in host_ips]}
    if ips := life.preparation.addresses:
        status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
    if life.refusal is None:
        if life.pod.init:
            status["initContainerStatuses"] = [_container(life, each, now) for each in life.pod.init]
        status["containerStatuses"] = [_container(life, each, now) for each in life.pod.containers]
    known = before.get("conditions") or []
    status["conditions"] = [_since(condition, known, now.time) for condition in _conditions(life, reached, known)]
    return status


def is_ready(status: Object) -> bool:
    condition = find_condition(status.get("conditions") or [], READY)
    return condition is not None and condition["status"] == TRUE


# -- conditions ----------------------------------------------------------------------------------------------------


def _conditions(life: Life, reached: str, known: list[Object]) -> list[Object]:
    unready = [each.name for each in life.pod.containers if not life[each.name].ready]
    unready += [each.name for each in life.pod.init if each.sidecar and not life[each.name].ready]
    containers_ready = _containers_ready(reached, unready)
    return [
        _condition(READY_TO_START, life.preparation.done and not life.released),
        _initialized(life, reached),
        {**_ready(life, containers_ready, known), "type": READY},
        {**containers_ready, "type": CONTAINERS_READY},
        _condition(POD_SCHEDULED, True),
    ]


def _initialized(life: Life, reached: str) -> Object:
    if reached == SUCCEEDED:
        return _condition(INITIALIZED, True, "PodCompleted")
    if initialized(life) and life.refusal is None:
        return _condition(INITIALIZED, True)
    missing = " ".join(container.name for container in waiting_for(life))
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


def _ready(life: Life, containers_ready: Object, known: list[Object]) -> Object:
    if containers_ready["status"] == FALSE:
        return containers_ready
    gates = [gate["conditionType"] for gate in life.pod.object["spec"].get("readinessGates") or ()]
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


def _container(life: Life, container: Container, now: Moment) -> Object:
    known = life[container.name]
    state, last = _states(life, container, now)
    completed = container.init and not container.sidecar and known.ending is not None and known.ending.exit_code == 0
    found: Object = {
        "name": container.name,
        "image": container.image,
        "imageID": known.image_id,
        "ready": completed if container.init and not container.sidecar else known.ready,
        "restartCount": known.restarts,
        "started": known.started,
        "state": state,
        "lastState": last,
    }
    if known.container_id:
        found["containerID"] = _ID_SCHEME + known.container_id
    return found


def _states(life: Life, container: Container, now: Moment) -> tuple[Object, Object]:
    """What it does now, and how its last run before that ended."""
    known = life[container.name]
    if known.stage is Stage.RUNNING and known.since is not None:
        return {"running": {"startedAt": timestamp(known.since.time)}}, _terminated(known.ending)
    if known.ending is None:
        return {"waiting": _waiting(life, container, known)}, {}
    if known.problem is not None and not life.stopping:
        return {"waiting": _trouble(container, known.problem, known.failures)}, _terminated(known.ending)
    if _in_backoff(life, container, known, now):
        assert known.backoff is not None
        message = (
            f"back-off {go_duration(known.backoff.pause)} restarting failed container={container.name} "
            f"pod={life.pod.key.name}_{life.pod.key.namespace}({life.pod.uid})"
        )
        return {"waiting": _words(CRASH_LOOP, message)}, _terminated(known.ending)
    if life.outdated(container) and not life.stopping:
        # It did not end for good, and the API takes "terminated" for that where nothing is restarted.
        return {"waiting": _words(CREATING)}, _terminated(known.ending)
    return _terminated(known.ending), _terminated(known.previous)


def _in_backoff(life: Life, container: Container, known: ContainerLife, now: Moment) -> bool:
    ending = known.ending
    if ending is None or known.stage is not Stage.ENDED or known.backoff is None or life.stopping:
        return False
    return life.pod.restarts(container, ending.exit_code) and now.at < restart_at(known.backoff, ending.finished.at)


def _waiting(life: Life, container: Container, known: ContainerLife) -> Object:
    if known.problem is not None:
        return _trouble(container, known.problem, known.failures)
    if life.preparation.problem is not None:
        return _words(CREATING, life.preparation.problem.message)
    if not container.init and life.pod.init and not initialized(life):
        return _words(INITIALIZING)
    return _words(CREATING if not container.init or container is life.pod.init[0] else INITIALIZING)


def _trouble(container: Container, problem: Problem, failures: int) -> Object:
    """A pull that has failed again is waited with, and that is said until it works: a kubelet says one while it waits
    and the other while it tries, which would be a write for each."""
    if problem.reason == NOT_PULLED and failures > 1:
        words = f'Back-off pulling image "{container.image}": {NOT_PULLED}: {problem.message}'
        return _words(PULL_BACK_OFF, words)
    return _words(problem.reason, problem.message)


def _words(reason: str, message: str = "") -> Object:
    return {"reason": reason, "message": message} if message else {"reason": reason}


def _terminated(ending: Ending | None) -> Object:
    if ending is None:
        return {}
    found: Object = {"exitCode": ending.exit_code, "reason": ending.reason}
    if ending.signal:
        found["signal"] = ending.signal
    if ending.message:
        found["message"] = ending.message
    if ending.started is not None:
        found["startedAt"] = timestamp(ending.started)
    found["finishedAt"] = timestamp(ending.finished.time)
    if ending.container_id:
        found["containerID"] = _ID_SCHEME + ending.container_id
    return {"terminated": found}
