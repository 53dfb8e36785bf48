"""Progress of a pod: its phase, and whether its init containers are complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.views.pod import FAILED, RUNNING, SUCCEEDED
from sandpool.node.pods.spec import Container
from sandpool.node.pods.state import ContainerPhase, PodState

PENDING: Final = "Pending"


def init_finished(state: PodState, container: Container) -> bool:
    """Whether the containers after this init container may start."""
    known = state[container.name]
    if container.sidecar:
        return known.started
    return known.phase is ContainerPhase.ENDED and known.termination is not None and known.termination.exit_code == 0


def waiting_for(state: PodState) -> Iterator[Container]:
    """Yield the incomplete init containers. Once a main container has run, sidecars no longer count."""
    beyond = any(state[container.name].termination or state[container.name].since for container in state.pod.containers)
    for container in state.pod.init:
        if not init_finished(state, container) and not (container.sidecar and beyond):
            yield container


def initialized(state: PodState) -> bool:
    return next(waiting_for(state), None) is None


def init_failed(state: PodState) -> bool:
    """Whether an init container failed and will not be restarted."""
    for container in state.pod.init:
        known = state[container.name]
        if container.sidecar or known.phase is not ContainerPhase.ENDED or known.termination is None:
            continue
        code = known.termination.exit_code
        if code != 0 and not state.pod.restarts(container, code):
            return True
    return False


def finished(state: PodState, container: Container) -> bool:
    """Whether a main container ended and will not be restarted."""
    known = state[container.name]
    ended = known.phase is ContainerPhase.ENDED and known.termination is not None
    return ended and not state.outdated(container) and not state.pod.restarts(container, _code(state, container))


def work_finished(state: PodState) -> bool:
    """Whether no main container runs or will run again. Sidecars may still run."""
    return init_failed(state) or all(finished(state, container) for container in state.pod.containers)


def running(state: PodState) -> Iterator[Container]:
    """Yield the containers that have processes, or may have."""
    for container in state.pod.every:
        if state[container.name].phase in (ContainerPhase.STARTING, ContainerPhase.RUNNING):
            yield container


def phase(state: PodState) -> str:
    """Return the phase of the pod."""
    if state.rejection is not None:
        return FAILED
    stopped = next(running(state), None) is None
    if state.failure is not None:
        return FAILED if stopped else _lively(state)
    if init_failed(state):
        return FAILED if stopped else PENDING
    if work_finished(state) and stopped:
        succeeded = all(_code(state, container) == 0 for container in state.pod.containers)
        return SUCCEEDED if succeeded else FAILED
    if state.deleting and stopped and _has_run(state):
        # A pod that would have continued is deleted: the last exit codes decide.
        return SUCCEEDED if all(_code(state, container) == 0 for container in state.pod.containers) else FAILED
    return _lively(state)


def _lively(state: PodState) -> str:
    return RUNNING if _has_run(state) else PENDING


def _has_run(state: PodState) -> bool:
    """Whether every main container has been started at least once."""
    known = [state[container.name] for container in state.pod.containers]
    return all(each.since is not None or each.termination is not None for each in known)


def _code(state: PodState, container: Container) -> int:
    termination = state[container.name].termination
    return 1 if termination is None else termination.exit_code
