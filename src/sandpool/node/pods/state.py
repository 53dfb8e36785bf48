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

from sandpool.kube.retry import backoff_delay
from sandpool.node.pods.backoff import CrashBackoff
from sandpool.node.pods.probe_state import ProbeState
from sandpool.node.pods.spec import Container, Pod, ProbeKind

# Reasons of kubelet why a container is waiting.
CREATING: Final = "ContainerCreating"
INITIALIZING: Final = "PodInitializing"
CRASH_LOOP: Final = "CrashLoopBackOff"
NOT_PULLED: Final = "ErrImagePull"
PULL_BACK_OFF: Final = "ImagePullBackOff"

COMPLETED: Final = "Completed"
ERROR: Final = "Error"
OOM_KILLED: Final = "OOMKilled"
START_ERROR: Final = "StartError"
# Exit code of a container whose program could not be executed.
START_ERROR_CODE: Final = 128

# Minimum grace period after a preStop hook, in seconds; kubelet's figure.
_LEAST_GRACE: Final = 2.0
# Back-off after a failed attempt to prepare the pod or to start a container, in seconds.
_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 300.0


class Moment(NamedTuple):
    """One instant, as monotonic seconds and as wall-clock time."""

    at: float
    time: datetime


class FailureReason(NamedTuple):
    """The reason of a failure: in CamelCase for programs, and a message for users."""

    reason: str
    message: str


class ContainerPhase(Enum):
    """Whether a container runs."""

    WAITING = "never started, or reset"
    STARTING = "start in progress"
    RUNNING = "running"
    ENDED = "last run ended"


@dataclass(frozen=True, slots=True)
class Termination:
    """The end of one run of a container."""

    exit_code: int
    reason: str
    finished: Moment
    started: datetime | None = None
    message: str = ""
    signal: int = 0
    container_id: str = ""


class Hook(Enum):
    """Progress of a lifecycle hook (postStart or preStop)."""

    NONE = "no hook to wait for"
    DUE = "to be run"
    RUNNING = "in progress"


@dataclass(frozen=True, slots=True)
class Stop:
    """Progress of stopping a container: preStop hook, then the stop signal, then SIGKILL."""

    until: float  # monotonic time of the SIGKILL
    hook: Hook
    signalled: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The known state of one container."""

    phase: ContainerPhase = ContainerPhase.WAITING
    problem: FailureReason | None = None  # why the last start failed
    retry_at: float = 0.0  # monotonic time before which it is not started
    failures: int = 0  # failed starts in a row
    restarts: int = 0
    backoff: CrashBackoff | None = None
    since: Moment | None = None  # start of the current run
    termination: Termination | None = None  # of the most recent run that ended
    previous: Termination | None = None  # of the run before that one
    hook: Hook = Hook.NONE  # postStart
    probe_states: Mapping[ProbeKind, ProbeState] = field(default_factory=dict)
    stop: Stop | None = None
    container_id: str = ""
    image_id: str = ""
    image: str = ""  # image name in the spec at the last start; empty if it never started or that is unknown

    @property
    def started(self) -> bool:
        """Whether it runs, its postStart hook has returned and its startup probe has succeeded."""
        startup = self.probe_states.get(ProbeKind.STARTUP)
        return self.phase is ContainerPhase.RUNNING and self.hook is Hook.NONE and (startup is None or startup.good)

    @property
    def ready(self) -> bool:
        """Whether it has started and its readiness probe, if any, succeeds."""
        readiness = self.probe_states.get(ProbeKind.READINESS)
        return self.started and (readiness is None or readiness.good)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Progress of the pod's network and volumes."""

    under_way: bool = False
    done: bool = False
    addresses: tuple[str, ...] = ()
    problem: FailureReason | None = None
    retry_at: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class PodState:
    """The known state of one pod."""

    pod: Pod
    containers: Mapping[str, ContainerState]
    preparation: Preparation = field(default_factory=Preparation)
    start_time: datetime | None = None  # when the node accepted it
    rejection: FailureReason | None = None  # why the node does not run it
    failure: FailureReason | None = None  # why the node stops it early, such as its active deadline
    halt: bool = False  # the node stops; the pod continues when the node is back
    gone: bool = False  # it no longer exists in the API
    deadline: float | None = None  # while stopping: monotonic time of the final SIGKILL
    frozen: bool = False
    freezing: bool = False  # a freeze or thaw is in progress
    in_use: bool = False  # a client has used it, so it must not be frozen as a warm one again
    asleep: bool = False  # no client uses it for as long as its settings say, so it is to be frozen
    releasing: bool = False
    released: bool = False  # only its directory is left
    discarded: bool = False  # nothing is left

    @classmethod
    def of(cls, pod: Pod, *, start_time: datetime | None = None) -> PodState:
        return cls(pod, {container.name: ContainerState() for container in pod.every}, start_time=start_time)

    def __getitem__(self, name: str) -> ContainerState:
        return self.containers[name]

    def with_container(self, name: str, **changes: Any) -> PodState:
        """Return a copy with some fields of one container changed."""
        return replace(self, containers={**self.containers, name: replace(self.containers[name], **changes)})

    @property
    def deleting(self) -> bool:
        return self.gone or self.pod.deletion is not None

    def outdated(self, container: Container) -> bool:
        """Whether the image of a main container was changed in the pod spec after its last start."""
        image = self.containers[container.name].image
        return not container.init and bool(image) and image != container.image

    @property
    def stopping(self) -> bool:
        """Whether no container may be started any more."""
        return self.deleting or self.halt or self.failure is not None or self.rejection is not None

    # -- observations ----------------------------------------------------------------------------------------------

    def changed(self, pod: Pod) -> PodState:
        """The API has a new version of the pod."""
        return replace(self, pod=pod)

    def rejected(self, problem: FailureReason) -> PodState:
        """The node does not run this pod."""
        return replace(self, rejection=problem)

    def prepared(self, addresses: tuple[str, ...]) -> PodState:
        """Its network and volumes are ready."""
        return replace(self, preparation=Preparation(done=True, addresses=addresses))

    def not_prepared(self, problem: FailureReason, now: Moment) -> PodState:
        """Its network or volumes could not be made; the next attempt follows after a back-off."""
        before = self.preparation
        failures = before.failures + 1
        return replace(
            self,
            preparation=replace(
                before, under_way=False, problem=problem, failures=failures, retry_at=now.at + retry_pause(failures)
            ),
        )

    def started(self, name: str, container_id: str, image_id: str, now: Moment) -> PodState:
        """A container has started."""
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

    def not_started(self, name: str, problem: FailureReason, now: Moment, *, image_id: str = "") -> PodState:
        """An attempt to start a container failed; the next follows after a back-off."""
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
        """The only attempt to start a container failed, because its restart policy allows no other."""
        termination = Termination(START_ERROR_CODE, START_ERROR, now, message=message)
        return self.ended(name, termination).with_container(name, image_id=image_id)

    def ended(self, name: str, termination: Termination) -> PodState:
        """A run of a container has ended."""
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
        """The postStart hook has returned."""
        return self.with_container(name, hook=Hook.NONE)

    def hook_failed(self, name: str, now: Moment) -> PodState:
        """The postStart hook failed, so the container is stopped."""
        if self.containers[name].phase is not ContainerPhase.RUNNING:
            return self
        return self.with_container(name, hook=Hook.NONE, stop=Stop(now.at + self.pod.grace, Hook.NONE))

    def answered(self, name: str, kind: ProbeKind, good: bool, now: Moment) -> PodState:
        """A probe has a result. The result of a probe of an earlier run is ignored."""
        container = self.containers[name]
        probe_state = container.probe_states.get(kind)
        if probe_state is None or not probe_state.in_flight:
            return self
        probe_states = {**container.probe_states, kind: probe_state.answered(good, now.at)}
        return self.with_container(name, probe_states=probe_states)

    def froze(self) -> PodState:
        return replace(self, frozen=True, freezing=False)

    def thawed(self, now: Moment) -> PodState:
        """The pod was thawed. Probes that were due while it was frozen are due now."""
        state = replace(self, frozen=False, freezing=False)
        for name, container in self.containers.items():
            probe_states = {kind: probe_state.resumed(now.at) for kind, probe_state in container.probe_states.items()}
            state = state.with_container(name, probe_states=probe_states)
        return state

    def cleared(self) -> PodState:
        """Its network, cgroups and mounts have been released."""
        return replace(self, releasing=False, released=True)

    def stop_hook_done(self, name: str, now: Moment) -> PodState:
        """The preStop hook has returned. The container gets at least two more seconds to react to the signal."""
        stop = self.containers[name].stop
        if stop is None:
            return self
        return self.with_container(
            name, stop=replace(stop, hook=Hook.NONE, until=max(stop.until, now.at + _LEAST_GRACE))
        )


def retry_pause(failures: int) -> float:
    """Seconds before the next attempt after this many failures in a row."""
    return backoff_delay(failures, first=_FIRST_RETRY, longest=_LONGEST_RETRY)
