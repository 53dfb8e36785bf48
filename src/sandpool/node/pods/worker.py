"""Lives the life of one pod: asks ``decide`` what to do, does it, tells the API how it is.

The loop is woken by everything that happens and goes round once: decide, begin what was decided, report. What takes
time is done in tasks besides, which tell the ``Life`` what came of it. A failure is part of that: no action ends the
worker, only the end of the pod does, or cancelling, which leaves every container as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from sandpool.api.events import Happening
from sandpool.api.resource import Object
from sandpool.engine.clock import within
from sandpool.kube.errors import ApiError
from sandpool.node.pods import happenings
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
from sandpool.node.pods.decide import decide
from sandpool.node.pods.environment import ConfigError
from sandpool.node.pods.estate import Estate, NotPrepared
from sandpool.node.pods.inquiry import Inquiry
from sandpool.node.pods.life import NOT_PULLED, START_ERROR_CODE, Life, Moment, Problem, Stage
from sandpool.node.pods.parts import ImageFailure, VolumeFailure
from sandpool.node.pods.refusals import REASON, message, refused_later
from sandpool.node.pods.reporter import Reporter
from sandpool.node.pods.spec import Pod
from sandpool.node.pods.workplace import Workplace
from sandpool.node.runtimes.runtime import RuntimeFailure

_log = logging.getLogger(__name__)

# Before something is tried again that failed for no good reason.
_PAUSE: Final = 1.0


class PodWorker:
    """``run`` is to be started as a task; it returns when nothing of the pod is left. ``life`` is how it is now."""

    def __init__(self, life: Life, place: Workplace) -> None:
        self.life = life
        self.place = place
        self.estate = Estate(place, life.pod)
        self.inquiry = Inquiry(life.pod.uid, place.network, place.clock)
        self.settled = asyncio.Event()  # set while nothing of the pod runs and nothing is held by it
        self._news = asyncio.Event()
        self._thawed = asyncio.Condition()
        self._reporter = Reporter(place, self._news.set, self.vanished)

    # -- what others tell it ---------------------------------------------------------------------------------------

    def saw(self, object: Object) -> None:
        """The API shows another version of the pod."""
        if late := refused_later(self.life.pod.object, object):
            self._happened(happenings.refused(REASON, message(late)))
        self._become(self.life.changed(Pod.read(object)))

    def vanished(self) -> None:
        """The API does not know the pod any more."""
        self._become(replace(self.life, gone=True))

    def halt(self, grace: float) -> None:
        """End its containers within this time and give back what it holds, but leave the pod: it goes on when the node
        is back. ``settled`` tells when that is done."""
        self._become(replace(self.life, halt=True, deadline=self.place.clock.monotonic() + grace))

    async def touch(self) -> None:
        """Somebody uses it: thaw it if it is frozen, and return when it runs."""
        if not self.life.touched:
            self.life = replace(self.life, touched=True)
        if not (self.life.frozen or self.life.freezing):
            return  # there is nothing to do, and a pass would stand in the way of who uses it
        self._news.set()
        async with self._thawed:
            await self._thawed.wait_for(lambda: not (self.life.frozen or self.life.freezing))

    # -- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.life = await self.estate.recover(self.life, self._now())
            for name, container in self.life.containers.items():
                if container.stage is Stage.RUNNING:
                    self._watch(name)
            while not self.life.discarded:
                self._news.clear()
                before, now = self.life, self._now()
                self.life, agenda = decide(before, now)
                self._announce(before, self.life)
                for action in agenda.actions:
                    self._spawn(self._perform(action), str(action))
                if agenda.actions:
                    await self.place.clock.sleep(0)  # what was decided begins before anything is said about it
                wake = self._reporter.look(self.life, self._now(), self._spawn)
                await self._until(min((at for at in (wake, agenda.wake) if at is not None), default=None))

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._group.create_task(work, name=f"{what} of pod {self.life.pod.key}")

    def _now(self) -> Moment:
        return Moment(self.place.clock.monotonic(), self.place.clock.now())

    def _become(self, life: Life) -> None:
        self.life = life
        self._news.set()

    async def _until(self, at: float | None) -> None:
        if at is None:
            await self._news.wait()
        elif not self._news.is_set():
            with suppress(TimeoutError):
                await within(self.place.clock, max(at - self.place.clock.monotonic(), 0.0), self._until(None))

    def _happened(self, happening: Happening) -> None:
        self.place.recorder.event(self.life.pod.reference, happening)

    def _announce(self, before: Life, after: Life) -> None:
        if after.doom is not None and before.doom is None:
            self._happened(happenings.deadline_exceeded(after.doom.message))
        for name, container in after.containers.items():
            if container.stop is None or before[name].stop is not None:
                continue
            failed = [kind for kind, tally in container.tallies.items() if tally.failed]
            restarts = failed and not after.stopping
            self._happened(happenings.killing_unhealthy(name, failed[0]) if restarts else happenings.killing(name))

    # -- acting ----------------------------------------------------------------------------------------------------

    async def _perform(self, action: Action) -> None:
        try:
            await self._work(action)
        except Exception:  # noqa: BLE001 - a bug must not take the other containers with it; it is tried again
            _log.exception("%s of pod %s failed", action, self.life.pod.key)
            await self.place.clock.sleep(_PAUSE)
            self._become(self._undone(action))

    def _undone(self, action: Action) -> Life:
        """The life as if the action had not been begun, or had come to a bad end."""
        problem, now = Problem("InternalError", "the node failed; its log says how"), self._now()
        match action:
            case Prepare():
                return self.life.not_prepared(problem, now)
            case Start(name):
                return self.life.not_started(name, problem, now)
            case PostStart(name):
                return self.life.hook_failed(name, now)
            case PreStop(name):
                return self.life.stop_hook_done(name, now)
            case Ask(name, kind):
                return self.life.answered(name, kind, False, now)
            case Freeze() | Thaw():
                return replace(self.life, freezing=False)
            case Release() | Discard():
                return replace(self.life, releasing=False)
            case Signal(name) | Kill(name):
                stop = self.life[name].stop
                return (
                    self.life
                    if stop is None
                    else self.life.put(name, stop=replace(stop, signalled=False, killed=False))
                )

    async def _work(self, action: Action) -> None:
        match action:
            case Prepare():
                await self._prepare()
            case Start(name):
                await self._start(name)
            case PostStart(name):
                await self._post_start(name)
            case PreStop(name, seconds):
                await self._pre_stop(name, seconds)
            case Signal(name):
                await self.estate.containers.signal(name)
            case Kill(name):
                await self.estate.containers.running[name].kill()
            case Ask():
                await self._ask(action)
            case Freeze():
                await self.estate.pause()
                self._become(self.life.froze())
            case Thaw():
                await self.estate.resume()
                self._become(self.life.thawed(self._now()))
                async with self._thawed:
                    self._thawed.notify_all()
            case Release(volumes):
                await self.estate.release(volumes=volumes)
                self._become(self.life.cleared())
                if self.life.halt and not self.life.deleting:
                    await self._reporter.conclude(lambda: self.life, self._now())
                self.settled.set()
            case Discard():
                await self._discard()

    async def _turn(self) -> None:
        """Before everything that takes a while without letting go: pods of warm pools, which are started by the dozen,
        do that one at a time and one per turn of the event loop. Who shares it waits for one step and not for all."""
        if self.life.pod.is_warm:
            await self.place.turn()

    async def _prepare(self) -> None:
        try:
            async with self.place.preparing:
                await self._turn()
                addresses = await self.estate.prepare()
        except NotPrepared as error:
            self._happened(happenings.not_prepared(error.reason, str(error)))
            self._become(self.life.not_prepared(Problem(error.reason, str(error)), self._now()))
        else:
            self._become(self.life.prepared(addresses))

    async def _start(self, name: str) -> None:
        pod, containers = self.life.pod, self.estate.containers
        container, known = pod.container(name), self.life[name]
        restarts = known.restarts + (known.ending is not None)
        reason, image = NOT_PULLED, None
        try:
            image = await containers.image(pod, container)
            if image.pulled:
                self._happened(happenings.pulled(container.image))
            async with self.place.starting:
                reason = "CreateContainerError"
                await self._turn()
                await containers.create(pod, container, image)
                reason = "RunContainerError"
                await self._turn()
                id = await containers.start(container, image, restarts)
        except (ImageFailure, ConfigError, VolumeFailure, RuntimeFailure, ApiError, OSError) as error:
            reason = error.reason if isinstance(error, ImageFailure) else reason
            reason = "CreateContainerConfigError" if isinstance(error, ConfigError) else reason
            self._happened(happenings.failed(reason, str(error)))
            problem, image_id = Problem(reason, str(error)), image.id if image else ""
            refused = reason == "RunContainerError" and isinstance(error, RuntimeFailure)
            if refused and not pod.restarts(container, START_ERROR_CODE):
                self._become(self.life.not_startable(name, problem.message, self._now(), image_id=image_id))
            else:
                self._become(self.life.not_started(name, problem, self._now(), image_id=image_id))
            return
        self._happened(happenings.started(name))
        self._become(self.life.started(name, id, image.id, self._now()))
        self._watch(name)

    def _watch(self, name: str) -> None:
        self._spawn(self._wait(name), f"the end of {name}")

    async def _wait(self, name: str) -> None:
        known = self.life[name]
        ending = await self.estate.containers.ending(self.life.pod.container(name), known.since, known.container_id)
        self._become(self.life.ended(name, ending))
        known = self.life[name]
        if restart_at(known.backoff, ending.finished.at) > ending.finished.at and not self.life.stopping:
            self._happened(happenings.back_off(name, str(self.life.pod.key)))

    async def _post_start(self, name: str) -> None:
        container, run = self.life.pod.container(name), self.life[name].container_id
        assert container.post_start is not None
        running = self.estate.containers.running[name]
        answer = await self.inquiry.ask(container.post_start, container, running, None)
        if self.life[name].container_id != run:
            return  # it was the hook of an earlier run
        if answer.good:
            self._become(self.life.hook_done(name))
        else:
            self._happened(happenings.hook_failed("FailedPostStartHook", f"PostStartHook failed: {answer.message}"))
            self._become(self.life.hook_failed(name, self._now()))

    async def _pre_stop(self, name: str, seconds: float) -> None:
        container, run = self.life.pod.container(name), self.life[name].container_id
        assert container.pre_stop is not None
        running = self.estate.containers.running[name]
        answer = await self.inquiry.ask(container.pre_stop, container, running, seconds)
        if self.life[name].container_id != run:
            return  # likewise
        if not answer.good:
            self._happened(happenings.hook_failed("FailedPreStopHook", f"PreStopHook failed: {answer.message}"))
        self._become(self.life.stop_hook_done(name, self._now()))

    async def _ask(self, ask: Ask) -> None:
        container, known = self.life.pod.container(ask.name), self.life[ask.name]
        probe = container.probes[ask.kind]
        running = self.estate.containers.running[ask.name]
        answer = await self.inquiry.ask(probe.action, container, running, probe.timeout)
        now = self._now()
        if self.life[ask.name].container_id != known.container_id:
            return  # it was asked of an earlier run
        tally = self.life[ask.name].tallies.get(ask.kind)
        if not answer.good and tally is not None and tally.counts(False, now.at):
            self._happened(happenings.unhealthy(ask.kind, answer.message))
        self._become(self.life.answered(ask.name, ask.kind, answer.good, now))

    async def _discard(self) -> None:
        await self.estate.discard()
        if not self.life.gone:
            await self._reporter.remove(self.life, self._now())
        self.settled.set()
        self._become(replace(self.life, discarded=True))
