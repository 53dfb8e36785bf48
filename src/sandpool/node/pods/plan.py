"""What is to be done about a pod now: a pure function of its ``Life`` and the time.

It is asked after everything that happens, and when the time comes that it named itself. It marks in the life what it
asks for, so that nothing is asked for twice. The order in which things happen is kubelet's:

* volumes and network, then init containers one after the other, then the others. One container is started at a time,
  and the hook after its start holds up the next.
* A sidecar (an init container that keeps running) counts as through when it has started; it is started again whenever
  it ends, and stopped when no other container is left, in reverse order.
* A container whose image is changed is stopped and started again.
* When a pod is stopped, containers get their hook, then a signal, then what is left of the grace period.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from sandpool.api.labels import FREEZE_WHILE_WARM
from sandpool.node.pods.actions import (
    Action,
    Ask,
    Discard,
    Freeze,
    Kill,
    PostStart,
    Prepare,
    PreStop,
    Release,
    Signal,
    Start,
    Thaw,
)
from sandpool.node.pods.backoff import restart_at
from sandpool.node.pods.phase import init_finished, running, work_finished
from sandpool.node.pods.spec import Container, ProbeKind
from sandpool.node.pods.state import ContainerLife, Hook, Life, Moment, Problem, Stage, Stop

DEADLINE_EXCEEDED: Final = Problem("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


@dataclass(slots=True)
class Agenda:
    """What comes out: actions in the order in which they are to be begun, and when to ask again at the latest."""

    now: Moment
    actions: list[Action] = field(default_factory=list)
    wake: float | None = None

    def at(self, time: float) -> None:
        self.wake = time if self.wake is None else min(self.wake, time)


def decide(life: Life, now: Moment) -> tuple[Life, Agenda]:
    agenda = Agenda(now)
    life = _with_doom(life, agenda)
    life = _freeze_or_thaw(life, agenda)
    if life.stopping:
        life = _stop_all(life, agenda)
    elif work_finished(life):
        life = _stop_sidecars(life, _end_of_grace(life, agenda), agenda)
    else:
        life = _prepare(life, agenda)
        life = _run_hooks(life, agenda)
        life = _stop_outdated(life, agenda)
        life = _start(life, agenda)
        life = _ask(life, agenda)
    life = _drive_stops(life, agenda)
    return _clear_away(life, agenda), agenda


def _with_doom(life: Life, agenda: Agenda) -> Life:
    if life.pod.active_deadline is None or life.begun is None or life.stopping or work_finished(life):
        return life
    end = life.begun + timedelta(seconds=life.pod.active_deadline)
    left = (end - agenda.now.time).total_seconds()
    if left > 0:
        agenda.at(agenda.now.at + left)
        return life
    return replace(life, doom=DEADLINE_EXCEEDED)


# -- warm ----------------------------------------------------------------------------------------------------------


def _freeze_or_thaw(life: Life, agenda: Agenda) -> Life:
    """A pod that nobody has claimed yet need not run. Nobody asks a frozen container anything."""
    wanted = _may_be_frozen(life) and all(life[container.name].ready for container in life.pod.containers)
    if life.freezing or wanted == life.frozen:
        return life
    if life.frozen:
        agenda.actions.append(Thaw())
    elif any(tally.asking for each in life.containers.values() for tally in each.tallies.values()):
        return life  # when the answer is there
    else:
        agenda.actions.append(Freeze())
    return replace(life, freezing=True)


def _may_be_frozen(life: Life) -> bool:
    metadata = life.pod.object["metadata"]
    opted_in = (metadata.get("annotations") or {}).get(FREEZE_WHILE_WARM) == "true"
    return opted_in and life.pod.is_warm and not life.touched and not life.stopping


# -- starting ------------------------------------------------------------------------------------------------------


def _prepare(life: Life, agenda: Agenda) -> Life:
    preparation = life.preparation
    if preparation.done or preparation.under_way:
        return life
    if agenda.now.at < preparation.retry_at:
        agenda.at(preparation.retry_at)
        return life
    agenda.actions.append(Prepare())
    return replace(life, preparation=replace(preparation, under_way=True))


def _run_hooks(life: Life, agenda: Agenda) -> Life:
    for container in life.pod.every:
        if life[container.name].hook is Hook.DUE:
            agenda.actions.append(PostStart(container.name))
            life = life.put(container.name, hook=Hook.RUNNING)
    return life


def _stop_outdated(life: Life, agenda: Agenda) -> Life:
    """A container whose image was changed is run again with the new one."""
    for container in life.pod.containers:
        if life.outdated(container):
            life = _stop(life, container, agenda.now.at + life.pod.grace, agenda)
    return life


def _start(life: Life, agenda: Agenda) -> Life:
    if not life.preparation.done or life.frozen or any(_is_starting(each) for each in life.containers.values()):
        return life
    for container in life.pod.init:
        if init_finished(life, container):
            continue
        known = life[container.name]
        if container.sidecar and _has_started_others(life):
            if known.stage is not Stage.RUNNING and _is_time(life, container, agenda):
                return _begin(life, container, agenda)
            continue
        if known.stage is not Stage.RUNNING and _is_time(life, container, agenda):
            return _begin(life, container, agenda)
        return life
    for container in life.pod.containers:
        if life[container.name].stage is not Stage.RUNNING and _is_time(life, container, agenda):
            return _begin(life, container, agenda)
    return life


def _is_starting(known: ContainerLife) -> bool:
    return known.stage is Stage.STARTING or (known.stage is Stage.RUNNING and known.hook is not Hook.NONE)


def _has_started_others(life: Life) -> bool:
    """Whether the main containers have been reached, so that nobody waits for a sidecar that is down."""
    return any(life[container.name].stage is not Stage.WAITING for container in life.pod.containers)


def _is_time(life: Life, container: Container, agenda: Agenda) -> bool:
    known = life[container.name]
    at = known.retry_at
    if known.stage is Stage.ENDED and known.ending is not None:
        if not life.pod.restarts(container, known.ending.exit_code) and not life.outdated(container):
            return False
        at = max(at, restart_at(known.backoff, known.ending.finished.at))
    if agenda.now.at < at:
        agenda.at(at)
        return False
    return True


def _begin(life: Life, container: Container, agenda: Agenda) -> Life:
    agenda.actions.append(Start(container.name))
    return life.put(container.name, stage=Stage.STARTING)


# -- probing -------------------------------------------------------------------------------------------------------


def _ask(life: Life, agenda: Agenda) -> Life:
    if life.frozen or life.freezing:
        return life
    for container in life.pod.every:
        known = life[container.name]
        if known.stage is Stage.RUNNING and known.hook is Hook.NONE and known.stop is None:
            life = _ask_container(life, container, agenda)
    return life


def _ask_container(life: Life, container: Container, agenda: Agenda) -> Life:
    known = life[container.name]
    tallies = dict(known.tallies)
    for kind, tally in known.tallies.items():
        if tally.failed:
            grace = life.pod.grace if tally.probe.grace is None else tally.probe.grace
            return _stop(life, container, agenda.now.at + grace, agenda)
        if tally.over or tally.asking or (kind is not ProbeKind.STARTUP and not known.started):
            continue
        if agenda.now.at < tally.due:
            agenda.at(tally.due)
            continue
        agenda.actions.append(Ask(container.name, kind))
        tallies[kind] = tally.asked()
    return life.put(container.name, tallies=tallies)


# -- stopping ------------------------------------------------------------------------------------------------------


def _end_of_grace(life: Life, agenda: Agenda) -> float:
    """When everything that still runs is ended by force, if it began to be stopped now."""
    deletion = life.pod.deletion
    if life.gone and deletion is None:
        return agenda.now.at
    return agenda.now.at + (life.pod.grace if deletion is None else deletion[1])


def _stop_all(life: Life, agenda: Agenda) -> Life:
    end = _end_of_grace(life, agenda)
    if life.deadline is None or end < life.deadline:
        life = _hurry(replace(life, deadline=end), end)
    else:
        end = life.deadline  # a later request may shorten the time, never extend it
    for container in life.pod.every:
        if not container.sidecar:
            life = _stop(life, container, end, agenda)
    return _stop_sidecars(life, end, agenda)


def _hurry(life: Life, end: float) -> Life:
    """Have what is being stopped already end by then."""
    for name, known in life.containers.items():
        if known.stop is not None:
            life = life.put(name, stop=replace(known.stop, until=min(known.stop.until, end)))
    return life


def _stop_sidecars(life: Life, end: float, agenda: Agenda) -> Life:
    """The last one first, each when what was started after it has ended."""
    for container in reversed(life.pod.every):
        known = life[container.name]
        if container.sidecar:
            life = _stop(life, container, end, agenda)
        if known.stage in (Stage.STARTING, Stage.RUNNING):
            break
    return life


def _stop(life: Life, container: Container, until: float, agenda: Agenda) -> Life:
    known = life[container.name]
    if known.stage is not Stage.RUNNING or known.stop is not None:
        return life
    hook = Hook.DUE if container.pre_stop is not None and until > agenda.now.at else Hook.NONE
    return life.put(container.name, stop=Stop(until, hook))


def _drive_stops(life: Life, agenda: Agenda) -> Life:
    for container in life.pod.every:
        stop = life[container.name].stop
        if stop is None or stop.killed:
            continue
        if agenda.now.at >= stop.until:
            agenda.actions.append(Kill(container.name))
            life = life.put(container.name, stop=replace(stop, killed=True))
            continue
        agenda.at(stop.until)
        if life.frozen or life.freezing:
            continue  # it could not react
        if stop.hook is Hook.DUE:
            agenda.actions.append(PreStop(container.name, stop.until - agenda.now.at))
            life = life.put(container.name, stop=replace(stop, hook=Hook.RUNNING))
        elif stop.hook is Hook.NONE and not stop.signalled:
            agenda.actions.append(Signal(container.name))
            life = life.put(container.name, stop=replace(stop, signalled=True))
    return life


def _clear_away(life: Life, agenda: Agenda) -> Life:
    if not (life.stopping or work_finished(life)):
        return life
    busy = life.preparation.under_way or life.freezing or next(running(life), None) is not None
    if busy or life.releasing or life.discarded:
        return life
    if not life.released:
        agenda.actions.append(Release(volumes=not life.halt or life.deleting))
        return replace(life, releasing=True)
    if life.deleting:
        agenda.actions.append(Discard())
        return replace(life, releasing=True)
    return life
