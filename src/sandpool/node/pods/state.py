"""Everything a worker knows of its pod at one moment, as a value.

A ``Life`` is changed by two things only: what happened (the methods here) and what was decided (``decide``). Both make
a new one. So the whole course of a pod can be played through in a test, without a process and without a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from sandpool.node.pods.backoff import CrashBackoff
from sandpool.node.pods.probe_state import Tally
from sandpool.node.pods.spec import Container, Pod, ProbeKind

# Why a container does not run, in kubelet's words.
CREATING: Final = "ContainerCreating"
INITIALIZING: Final = "PodInitializing"
CRASH_LOOP: Final = "CrashLoopBackOff"
NOT_PULLED: Final = "ErrImagePull"
PULL_BACK_OFF: Final = "ImagePullBackOff"

COMPLETED: Final = "Completed"
ERROR: Final = "Error"
OOM_KILLED: Final = "OOMKilled"
START_ERROR: Final = "StartError"
# How a container ended that was there but whose program could not be run.
START_ERROR_CODE: Final = 128

# What is left of a grace period after a hook, at least; kubelet's figure.
_LEAST_GRACE: Final = 2.0
# After a failed attempt to prepare or to start, in seconds; the pause doubles.
_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 300.0


class Moment(NamedTuple):
    """An instant, as seconds to count with and as the time people read."""

    at: float
    time: datetime


class Problem(NamedTuple):
    """What keeps something from happening: a word for programs, a sentence for people."""

    reason: str
    message: str


class Stage(Enum):
    WAITING = "it has not run, or its next run has not begun"
    STARTING = "it is being started"
    RUNNING = "it runs"
    ENDED = "it ended"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of a container ended."""

    exit_code: int
    reason: str
    finished: Moment
    started: datetime | None = None
    message: str = ""
    signal: int = 0
    container_id: str = ""


class Hook(Enum):
    """A hook of a container, at its start or at its end."""

    NONE = "there is nothing to wait for"
    DUE = "it is to be run"
    RUNNING = "it is being run"


@dataclass(frozen=True, slots=True)
class Stop:
    """A running container is being ended: first its hook, then a signal, at last by force."""

    until: float  # then by force
    hook: Hook
    signalled: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class ContainerLife:
    stage: Stage = Stage.WAITING
    problem: Problem | None = None  # why the last attempt to start it failed
    retry_at: float = 0.0  # not started before
    failures: int = 0  # attempts to start it that failed, in a row
    restarts: int = 0
    backoff: CrashBackoff | None = None
    since: Moment | None = None  # when the present run began
    ending: Ending | None = None  # of the last run that ended
    previous: Ending | None = None  # of the run before that one
    hook: Hook = Hook.NONE  # the one after its start
    tallies: Mapping[ProbeKind, Tally] = field(default_factory=dict)
    stop: Stop | None = None
    container_id: str = ""
    image_id: str = ""
    image: str = ""  # as the spec called it when it was last started; empty: it was not, or nobody knows

    @property
    def started(self) -> bool:
        """It runs and has passed whatever it had to pass first."""
        startup = self.tallies.get(ProbeKind.STARTUP)
        return self.stage is Stage.RUNNING and self.hook is Hook.NONE and (startup is None or startup.good)

    @property
    def ready(self) -> bool:
        readiness = self.tallies.get(ProbeKind.READINESS)
        return self.started and (readiness is None or readiness.good)


@dataclass(frozen=True, slots=True)
class Preparation:
    """The pod's network and volumes."""

    under_way: bool = False
    done: bool = False
    addresses: tuple[str, ...] = ()
    problem: Problem | None = None
    retry_at: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    pod: Pod
    containers: Mapping[str, ContainerLife]
    preparation: Preparation = field(default_factory=Preparation)
    begun: datetime | None = None  # when the node took it
    refusal: Problem | None = None  # the node does not run it, and why
    doom: Problem | None = None  # it is ended before its time, and why
    halt: bool = False  # the node stops; the pod goes on when it is back
    gone: bool = False  # the API does not know it any more
    deadline: float | None = None  # once it is being stopped: when the last of it is ended by force
    frozen: bool = False
    freezing: bool = False  # being frozen or thawed
    touched: bool = False  # somebody uses it, whatever its labels say
    releasing: bool = False
    released: bool = False  # nothing of it is left but its directory
    discarded: bool = False  # nothing of it is left at all

    @classmethod
    def of(cls, pod: Pod, *, begun: datetime | None = None) -> Life:
        return cls(pod, {container.name: ContainerLife() for container in pod.every}, begun=begun)

    def __getitem__(self, name: str) -> ContainerLife:
        return self.containers[name]

    def put(self, name: str, **changes: Any) -> Life:
        """With one container changed."""
        return replace(self, containers={**self.containers, name: replace(self.containers[name], **changes)})

    @property
    def deleting(self) -> bool:
        return self.gone or self.pod.deletion is not None

    def outdated(self, container: Container) -> bool:
        """Whether a main container runs, or ran, another image than the pod asks for now."""
        image = self.containers[container.name].image
        return not container.init and bool(image) and image != container.image

    @property
    def stopping(self) -> bool:
        """Nothing is started any more."""
        return self.deleting or self.halt or self.doom is not None or self.refusal is not None

    # -- what happened ---------------------------------------------------------------------------------------------

    def changed(self, pod: Pod) -> Life:
        """The API shows another version of the pod."""
        return replace(self, pod=pod)

    def refused(self, problem: Problem) -> Life:
        """The node does not run such pods."""
        return replace(self, refusal=problem)

    def prepared(self, addresses: tuple[str, ...]) -> Life:
        return replace(self, preparation=Preparation(done=True, addresses=addresses))

    def not_prepared(self, problem: Problem, now: Moment) -> Life:
        before = self.preparation
        failures = before.failures + 1
        return replace(
            self,
            preparation=replace(
                before, under_way=False, problem=problem, failures=failures, retry_at=now.at + retry_pause(failures)
            ),
        )

    def started(self, name: str, container_id: str, image_id: str, now: Moment) -> Life:
        """A container runs from now on."""
        container, before = self.pod.container(name), self.containers[name]
        again = before.ending is not None
        tallies = {kind: Tally.begin(probe, now.at) for kind, probe in container.probes.items()}
        return self.put(
            name,
            stage=Stage.RUNNING,
            problem=None,
            failures=0,
            restarts=before.restarts + again,
            backoff=CrashBackoff.restarted(before.backoff, now.at) if again else before.backoff,
            since=now,
            hook=Hook.NONE if container.post_start is None else Hook.DUE,
            tallies=tallies,
            stop=None,
            container_id=container_id,
            image_id=image_id,
            image=container.image,
        )

    def not_started(self, name: str, problem: Problem, now: Moment, *, image_id: str = "") -> Life:
        before = self.containers[name]
        failures = before.failures + 1
        return self.put(
            name,
            stage=Stage.WAITING if before.ending is None else Stage.ENDED,
            problem=problem,
            failures=failures,
            retry_at=now.at + retry_pause(failures),
            image_id=image_id or before.image_id,
        )

    def not_startable(self, name: str, message: str, now: Moment, *, image_id: str) -> Life:
        """There was one attempt to start a container, it failed, and there is no other."""
        ending = Ending(START_ERROR_CODE, START_ERROR, now, message=message)
        return self.ended(name, ending).put(name, image_id=image_id)

    def ended(self, name: str, ending: Ending) -> Life:
        before = self.containers[name]
        return self.put(
            name,
            stage=Stage.ENDED,
            ending=ending,
            previous=before.ending,
            since=None,
            hook=Hook.NONE,
            tallies={},
            stop=None,
        )

    def hook_done(self, name: str) -> Life:
        """The hook after its start has returned."""
        return self.put(name, hook=Hook.NONE)

    def hook_failed(self, name: str, now: Moment) -> Life:
        """The hook after its start did not do what it should: the container is not wanted like this."""
        if self.containers[name].stage is not Stage.RUNNING:
            return self
        return self.put(name, hook=Hook.NONE, stop=Stop(now.at + self.pod.grace, Hook.NONE))

    def answered(self, name: str, kind: ProbeKind, good: bool, now: Moment) -> Life:
        """A probe's question has been answered. One that was asked of an earlier run means nothing."""
        container = self.containers[name]
        tally = container.tallies.get(kind)
        if tally is None or not tally.asking:
            return self
        tallies = {**container.tallies, kind: tally.answered(good, now.at)}
        return self.put(name, tallies=tallies)

    def froze(self) -> Life:
        return replace(self, frozen=True, freezing=False)

    def thawed(self, now: Moment) -> Life:
        """Whatever its probes missed meanwhile they ask now."""
        life = replace(self, frozen=False, freezing=False)
        for name, container in self.containers.items():
            tallies = {kind: tally.resumed(now.at) for kind, tally in container.tallies.items()}
            life = life.put(name, tallies=tallies)
        return life

    def cleared(self) -> Life:
        """What it held has been given back."""
        return replace(self, releasing=False, released=True)

    def stop_hook_done(self, name: str, now: Moment) -> Life:
        """The hook before its end has returned. However long it took, the container itself has a moment to react."""
        stop = self.containers[name].stop
        if stop is None:
            return self
        return self.put(name, stop=replace(stop, hook=Hook.NONE, until=max(stop.until, now.at + _LEAST_GRACE)))


def retry_pause(failures: int) -> float:
    pause: float = min(_FIRST_RETRY * 2.0 ** min(failures - 1, 16), _LONGEST_RETRY)
    return pause
