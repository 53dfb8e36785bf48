"""Decides what to do about a pod now: a pure function of its ``PodState`` and the time.

The worker calls it after every observation and at the time that the previous plan named. The plan marks each requested
action in the state, so no action is requested twice. The order of events is kubelet's:

* Volumes and network come first, then init containers one after the other, then the main containers. One container is
  starting at a time, and its postStart hook delays the next.
* A sidecar (an init container with ``restartPolicy: Always``) counts as complete when it has started. It is restarted
  whenever it ends. When no main container is left, sidecars are stopped in reverse order.
* A container whose image changes is stopped and started again.
* To stop a pod, each container gets its preStop hook, then the stop signal, then the rest of the grace period.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from sandpool.api.labels import FREEZE_WHILE_WARM
from sandpool.node.pods.actions import (
    Action,
    Discard,
    Freeze,
    Kill,
    PostStart,
    Prepare,
    PreStop,
    Release,
    RunProbe,
    Signal,
    Start,
    Thaw,
)
from sandpool.node.pods.backoff import restart_at
from sandpool.node.pods.phase import init_finished, running, work_finished
from sandpool.node.pods.spec import Container, ProbeKind
from sandpool.node.pods.state import ContainerPhase, ContainerState, FailureReason, Hook, Moment, PodState, Stop

DEADLINE_EXCEEDED: Final = FailureReason(
    "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
)


@dataclass(slots=True)
class Plan:
    """Actions in the order in which to begin them, and when to plan again at the latest."""

    now: Moment
    actions: list[Action] = field(default_factory=list)
    requeue_at: float | None = None

    def at(self, time: float) -> None:
        self.requeue_at = time if self.requeue_at is None else min(self.requeue_at, time)


def compute_plan(state: PodState, now: Moment) -> tuple[PodState, Plan]:
    """Return the state with the requested actions marked in it, and the plan."""
    plan = Plan(now)
    state = _apply_active_deadline(state, plan)
    state = _freeze_or_thaw(state, plan)
    if state.stopping:
        state = _stop_all(state, plan)
    elif work_finished(state):
        state = _stop_sidecars(state, _end_of_grace(state, plan), plan)
    else:
        state = _prepare(state, plan)
        state = _run_hooks(state, plan)
        state = _stop_outdated(state, plan)
        state = _start(state, plan)
        state = _run_probes(state, plan)
    state = _drive_stops(state, plan)
    return _clean_up(state, plan), plan


def _apply_active_deadline(state: PodState, plan: Plan) -> PodState:
    """Fail a pod that exceeds its ``activeDeadlineSeconds``."""
    if state.pod.active_deadline is None or state.start_time is None or state.stopping or work_finished(state):
        return state
    end = state.start_time + timedelta(seconds=state.pod.active_deadline)
    left = (end - plan.now.time).total_seconds()
    if left > 0:
        plan.at(plan.now.at + left)
        return state
    return replace(state, failure=DEADLINE_EXCEEDED)


# -- freezing ------------------------------------------------------------------------------------------------------


def _freeze_or_thaw(state: PodState, plan: Plan) -> PodState:
    """Freeze a pod that is asleep, or a warm one that opted in, once it is ready; thaw it when it is claimed or used. A
    frozen container is not probed."""
    wanted = _may_be_frozen(state) and all(state[container.name].ready for container in state.pod.containers)
    if state.freezing or wanted == state.frozen:
        return state
    if state.frozen:
        plan.actions.append(Thaw())
    elif any(probe_state.in_flight for each in state.containers.values() for probe_state in each.probe_states.values()):
        return state  # freeze once the result is there
    else:
        plan.actions.append(Freeze())
    return replace(state, freezing=True)


def _may_be_frozen(state: PodState) -> bool:
    if state.stopping:
        return False
    if state.asleep:
        return True
    metadata = state.pod.object["metadata"]
    opted_in = (metadata.get("annotations") or {}).get(FREEZE_WHILE_WARM) == "true"
    return opted_in and state.pod.is_warm and not state.in_use


# -- starting ------------------------------------------------------------------------------------------------------


def _prepare(state: PodState, plan: Plan) -> PodState:
    preparation = state.preparation
    if preparation.done or preparation.under_way:
        return state
    if plan.now.at < preparation.retry_at:
        plan.at(preparation.retry_at)
        return state
    plan.actions.append(Prepare())
    return replace(state, preparation=replace(preparation, under_way=True))


def _run_hooks(state: PodState, plan: Plan) -> PodState:
    for container in state.pod.every:
        if state[container.name].hook is Hook.DUE:
            plan.actions.append(PostStart(container.name))
            state = state.with_container(container.name, hook=Hook.RUNNING)
    return state


def _stop_outdated(state: PodState, plan: Plan) -> PodState:
    """Stop containers whose image was changed in the spec, so that they start again with the new one."""
    for container in state.pod.containers:
        if state.outdated(container):
            state = _stop(state, container, plan.now.at + state.pod.grace, plan)
    return state


def _start(state: PodState, plan: Plan) -> PodState:
    if not state.preparation.done or state.frozen or any(_is_starting(each) for each in state.containers.values()):
        return state
    for container in state.pod.init:
        if init_finished(state, container):
            continue
        known = state[container.name]
        if container.sidecar and _has_started_others(state):
            if known.phase is not ContainerPhase.RUNNING and _may_start_now(state, container, plan):
                return _start_container(state, container, plan)
            continue
        if known.phase is not ContainerPhase.RUNNING and _may_start_now(state, container, plan):
            return _start_container(state, container, plan)
        return state
    for container in state.pod.containers:
        if state[container.name].phase is not ContainerPhase.RUNNING and _may_start_now(state, container, plan):
            return _start_container(state, container, plan)
    return state


def _is_starting(known: ContainerState) -> bool:
    return known.phase is ContainerPhase.STARTING or (
        known.phase is ContainerPhase.RUNNING and known.hook is not Hook.NONE
    )


def _has_started_others(state: PodState) -> bool:
    """Whether a main container has been started, so that a sidecar that is down holds up none of them."""
    return any(state[container.name].phase is not ContainerPhase.WAITING for container in state.pod.containers)


def _may_start_now(state: PodState, container: Container, plan: Plan) -> bool:
    known = state[container.name]
    at = known.retry_at
    if known.phase is ContainerPhase.ENDED and known.termination is not None:
        if not state.pod.restarts(container, known.termination.exit_code) and not state.outdated(container):
            return False
        at = max(at, restart_at(known.backoff, known.termination.finished.at))
    if plan.now.at < at:
        plan.at(at)
        return False
    return True


def _start_container(state: PodState, container: Container, plan: Plan) -> PodState:
    plan.actions.append(Start(container.name))
    return state.with_container(container.name, phase=ContainerPhase.STARTING)


# -- probing -------------------------------------------------------------------------------------------------------


def _run_probes(state: PodState, plan: Plan) -> PodState:
    if state.frozen or state.freezing:
        return state
    for container in state.pod.every:
        known = state[container.name]
        if known.phase is ContainerPhase.RUNNING and known.hook is Hook.NONE and known.stop is None:
            state = _run_container_probes(state, container, plan)
    return state


def _run_container_probes(state: PodState, container: Container, plan: Plan) -> PodState:
    known = state[container.name]
    probe_states = dict(known.probe_states)
    for kind, probe_state in known.probe_states.items():
        if probe_state.failed:
            grace = state.pod.grace if probe_state.probe.grace is None else probe_state.probe.grace
            return _stop(state, container, plan.now.at + grace, plan)
        if probe_state.over or probe_state.in_flight or (kind is not ProbeKind.STARTUP and not known.started):
            continue
        if plan.now.at < probe_state.due:
            plan.at(probe_state.due)
            continue
        plan.actions.append(RunProbe(container.name, kind))
        probe_states[kind] = probe_state.sent()
    return state.with_container(container.name, probe_states=probe_states)


# -- stopping ------------------------------------------------------------------------------------------------------


def _end_of_grace(state: PodState, plan: Plan) -> float:
    """The end of the grace period if the pod began to stop now."""
    deletion = state.pod.deletion
    if state.gone and deletion is None:
        return plan.now.at
    return plan.now.at + (state.pod.grace if deletion is None else deletion[1])


def _stop_all(state: PodState, plan: Plan) -> PodState:
    end = _end_of_grace(state, plan)
    if state.deadline is None or end < state.deadline:
        state = _shorten_stops(replace(state, deadline=end), end)
    else:
        end = state.deadline  # a later request may shorten the grace period, never extend it
    for container in state.pod.every:
        if not container.sidecar:
            state = _stop(state, container, end, plan)
    return _stop_sidecars(state, end, plan)


def _shorten_stops(state: PodState, end: float) -> PodState:
    """Bring forward the end of stops in progress."""
    for name, known in state.containers.items():
        if known.stop is not None:
            state = state.with_container(name, stop=replace(known.stop, until=min(known.stop.until, end)))
    return state


def _stop_sidecars(state: PodState, end: float, plan: Plan) -> PodState:
    """Stop the last sidecar first, each once the containers started after it have ended."""
    for container in reversed(state.pod.every):
        known = state[container.name]
        if container.sidecar:
            state = _stop(state, container, end, plan)
        if known.phase in (ContainerPhase.STARTING, ContainerPhase.RUNNING):
            break
    return state


def _stop(state: PodState, container: Container, until: float, plan: Plan) -> PodState:
    known = state[container.name]
    if known.phase is not ContainerPhase.RUNNING or known.stop is not None:
        return state
    hook = Hook.DUE if container.pre_stop is not None and until > plan.now.at else Hook.NONE
    return state.with_container(container.name, stop=Stop(until, hook))


def _drive_stops(state: PodState, plan: Plan) -> PodState:
    for container in state.pod.every:
        stop = state[container.name].stop
        if stop is None or stop.killed:
            continue
        if plan.now.at >= stop.until:
            plan.actions.append(Kill(container.name))
            state = state.with_container(container.name, stop=replace(stop, killed=True))
            continue
        plan.at(stop.until)
        if state.frozen or state.freezing:
            continue  # a frozen process handles no signal
        if stop.hook is Hook.DUE:
            plan.actions.append(PreStop(container.name, stop.until - plan.now.at))
            state = state.with_container(container.name, stop=replace(stop, hook=Hook.RUNNING))
        elif stop.hook is Hook.NONE and not stop.signalled:
            plan.actions.append(Signal(container.name))
            state = state.with_container(container.name, stop=replace(stop, signalled=True))
    return state


def _clean_up(state: PodState, plan: Plan) -> PodState:
    if not (state.stopping or work_finished(state)):
        return state
    busy = state.preparation.under_way or state.freezing or next(running(state), None) is not None
    if busy or state.releasing or state.discarded:
        return state
    if not state.released:
        plan.actions.append(Release(volumes=not state.halt or state.deleting))
        return replace(state, releasing=True)
    if state.deleting:
        plan.actions.append(Discard())
        return replace(state, releasing=True)
    return state
