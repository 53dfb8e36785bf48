"""How far a pod has come: its phase, and whether its init containers are through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.views.pod import FAILED, RUNNING, SUCCEEDED
from sandpool.node.pods.spec import Container
from sandpool.node.pods.state import Life, Stage

PENDING: Final = "Pending"


def init_finished(life: Life, container: Container) -> bool:
    """Whether the containers after this one may start."""
    known = life[container.name]
    if container.sidecar:
        return known.started
    return known.stage is Stage.ENDED and known.ending is not None and known.ending.exit_code == 0


def waiting_for(life: Life) -> Iterator[Container]:
    """Init containers that are not through. Once a main container has run, nobody waits for a sidecar any more."""
    beyond = any(life[container.name].ending or life[container.name].since for container in life.pod.containers)
    for container in life.pod.init:
        if not init_finished(life, container) and not (container.sidecar and beyond):
            yield container


def initialized(life: Life) -> bool:
    return next(waiting_for(life), None) is None


def init_failed(life: Life) -> bool:
    """Whether an init container failed and is not run again."""
    for container in life.pod.init:
        known = life[container.name]
        if container.sidecar or known.stage is not Stage.ENDED or known.ending is None:
            continue
        code = known.ending.exit_code
        if code != 0 and not life.pod.restarts(container, code):
            return True
    return False


def finished(life: Life, container: Container) -> bool:
    """Whether a main container ended and is not run again."""
    known = life[container.name]
    ended = known.stage is Stage.ENDED and known.ending is not None
    return ended and not life.outdated(container) and not life.pod.restarts(container, _code(life, container))


def work_finished(life: Life) -> bool:
    """Whether no main container runs or will run again; sidecars may still be there."""
    return init_failed(life) or all(finished(life, container) for container in life.pod.containers)


def running(life: Life) -> Iterator[Container]:
    """The containers that have processes, or may have."""
    for container in life.pod.every:
        if life[container.name].stage in (Stage.STARTING, Stage.RUNNING):
            yield container


def phase(life: Life) -> str:
    if life.refusal is not None:
        return FAILED
    stopped = next(running(life), None) is None
    if life.doom is not None:
        return FAILED if stopped else _lively(life)
    if init_failed(life):
        return FAILED if stopped else PENDING
    if work_finished(life) and stopped:
        succeeded = all(_code(life, container) == 0 for container in life.pod.containers)
        return SUCCEEDED if succeeded else FAILED
    if life.deleting and stopped and _has_run(life):
        # A pod that would have gone on is stopped; what its containers said last is its end.
        return SUCCEEDED if all(_code(life, container) == 0 for container in life.pod.containers) else FAILED
    return _lively(life)


def _lively(life: Life) -> str:
    return RUNNING if _has_run(life) else PENDING


def _has_run(life: Life) -> bool:
    """Whether every main container has been started at least once."""
    known = [life[container.name] for container in life.pod.containers]
    return all(each.since is not None or each.ending is not None for each in known)


def _code(life: Life, container: Container) -> int:
    ending = life[container.name].ending
    return 1 if ending is None else ending.exit_code
