"""Everything the node knows about one pod at one moment, as an immutable value.

Two things produce a new ``PodState``: an observation (the methods here) and a decision (``compute_plan``). Because both
are pure, a test can play a pod's whole lifetime without a process and without a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from sandpool.node.pods.backoff import CrashBackoff
from sandpool.node.pods.probe_state import ProbeState
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


class ContainerPhase(Enum):
    WAITING = "it has not run, or its next run has not begun"
    STARTING = "it is being started"
    RUNNING = "it runs"
    ENDED = "it ended"


@dataclass(frozen=True, slots=True)
class Termination:
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
class ContainerState:
    phase: ContainerPhase = ContainerPhase.WAITING
    problem: Problem | None = None  # why the last attempt to start it failed
    retry_at: float = 0.0  # not started before
    failures: int = 0  # attempts to start it that failed, in a row
    restarts: int = 0
    backoff: CrashBackoff | None = None
    since: Moment | None = None  # when the present run began
    termination: Termination | None = None  # of the last run that ended
    previous: Termination | None = None  # of the run before that one
    hook: Hook = Hook.NONE  # the one after its start
    probe_states: Mapping[ProbeKind, ProbeState] = field(default_factory=dict)
    stop: Stop | None = None
    container_id: str = ""
    image_id: str = ""
    image: str = ""  # as the spec called it when it was last started; empty: it was not, or nobody knows

    @property
    def started(self) -> bool:
        """It runs and has passed whatever it had to pass first."""
        startup = self.probe_states.get(ProbeKind.STARTUP)
        return self.phase is ContainerPhase.RUNNING and self.hook is Hook.NONE and (startup is None or startup.good)

    @property
    def ready(self) -> bool:
        readiness = self.probe_states.get(ProbeKind.READINESS)
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
class PodState:
    pod: Pod
    containers: Mapping[str, ContainerState]
    preparation: Preparation = field(default_factory=Preparation)
    start_time: datetime | None = None  # when the node took it
    refusal: Problem | None = None  # the node does not run it, and why
    failure: Problem | None = None  # it is ended before its time, and why
    halt: bool = False  # the node stops; the pod goes on when it is back
    gone: bool = False  # the API does not know it any more
    deadline: float | None = None  # once it is being stopped: when the last of it is ended by force
    frozen: bool = False
    freezing: bool = False  # being frozen or thawed
    in_use: bool = False  # somebody uses it, whatever its labels say
    releasing: bool = False
    released: bool = False  # nothing of it is left but its directory
    discarded: bool = False  # nothing of it is left at all

    @classmethod
    def of(cls, pod: Pod, *, start_time: datetime | None = None) -> PodState:
        return cls(pod, {container.name: ContainerState() for container in pod.every}, start_time=start_time)

    def __getitem__(self, name: str) -> ContainerState:
        return self.containers[name]

    def with_container(self, name: str, **changes: Any) -> PodState:
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
        return self.deleting or self.halt or self.failure is not None or self.refusal is not None

    # -- what happened ---------------------------------------------------------------------------------------------

    def changed(self, pod: Pod) -> PodState:
        """The API shows another version of the pod."""
        return replace(self, pod=pod)

    def refused(self, problem: Problem) -> PodState:
        """The node does not run such pods."""
        return replace(self, refusal=problem)

    def prepared(self, addresses: tuple[str, ...]) -> PodState:
        return replace(self, preparation=Preparation(done=True, addresses=addresses))

    def not_prepared(self, problem: Problem, now: Moment) -> PodState:
        before = self.preparation
        failures = before.failures + 1
        return replace(
            self,
            preparation=replace(
                before, under_way=False, problem=problem, failures=failures, retry_at=now.at + retry_pause(failures)
            ),
        )

    def started(self, name: str, container_id: str, image_id: str, now: Moment) -> PodState:
        """A container runs from now on."""
        container, before = self.pod.container(name), self.containers[name]
        again = before.termination is not None
        probe_states = {kind: ProbeState.begin(probe, now.at) for kind, probe in container.probes.items()}
        return self.with_container(
            name,
            phase=ContainerPhase.RUNNING,
            problem=None,
            failures=0,
            restarts=before.restarts + again,
            backoff=CrashBackoff.restarted(before.backoff, now.at) if again else before.backoff,
            since=now,
            hook=Hook.NONE if container.post_start is None else Hook.DUE,
            probe_states=probe_states,
            stop=None,
            container_id=container_id,
            image_id=image_id,
            image=container.image,
        )

    def not_started(self, name: str, problem: Problem, now: Moment, *, image_id: str = "") -> PodState:
        before = self.containers[name]
        failures = before.failures + 1
        return self.with_container(
            name,
            phase=ContainerPhase.WAITING if before.termination is None else ContainerPhase.ENDED,
            problem=problem,
            failures=failures,
            retry_at=now.at + retry_pause(failures),
            image_id=image_id or before.image_id,
        )

    def not_startable(self, name: str, message: str, now: Moment, *, image_id: str) -> PodState:
        """There was one attempt to start a container, it failed, and there is no other."""
        termination = Termination(START_ERROR_CODE, START_ERROR, now, message=message)
        return self.ended(name, termination).with_container(name, image_id=image_id)

    def ended(self, name: str, termination: Termination) -> PodState:
        before = self.containers[name]
        return self.with_container(
            name,
            phase=ContainerPhase.ENDED,
            termination=termination,
            previous=before.termination,
            since=None,
            hook=Hook.NONE,
            probe_states={},
            stop=None,
        )

    def hook_done(self, name: str) -> PodState:
        """The hook after its start has returned."""
        return self.with_container(name, hook=Hook.NONE)

    def hook_failed(self, name: str, now: Moment) -> PodState:
        """The hook after its start did not do what it should: the container is not wanted like this."""
        if self.containers[name].phase is not ContainerPhase.RUNNING:
            return self
        return self.with_container(name, hook=Hook.NONE, stop=Stop(now.at + self.pod.grace, Hook.NONE))

    def answered(self, name: str, kind: ProbeKind, good: bool, now: Moment) -> PodState:
        """A probe's question has been answered. One that was asked of an earlier run means nothing."""
        container = self.containers[name]
        probe_state = container.probe_states.get(kind)
        if probe_state is None or not probe_state.asking:
            return self
        probe_states = {**container.probe_states, kind: probe_state.answered(good, now.at)}
        return self.with_container(name, probe_states=probe_states)

    def froze(self) -> PodState:
        return replace(self, frozen=True, freezing=False)

    def thawed(self, now: Moment) -> PodState:
        """Whatever its probes missed meanwhile they ask now."""
        state = replace(self, frozen=False, freezing=False)
        for name, container in self.containers.items():
            probe_states = {kind: probe_state.resumed(now.at) for kind, probe_state in container.probe_states.items()}
            state = state.with_container(name, probe_states=probe_states)
        return state

    def cleared(self) -> PodState:
        """What it held has been given back."""
        return replace(self, releasing=False, released=True)

    def stop_hook_done(self, name: str, now: Moment) -> PodState:
        """The hook before its end has returned. However long it took, the container itself has a moment to react."""
        stop = self.containers[name].stop
        if stop is None:
            return self
        return self.with_container(
            name, stop=replace(stop, hook=Hook.NONE, until=max(stop.until, now.at + _LEAST_GRACE))
        )


def retry_pause(failures: int) -> float:
    pause: float = min(_FIRST_RETRY * 2.0 ** min(failures - 1, 16), _LONGEST_RETRY)
    return pause
