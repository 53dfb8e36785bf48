"""Per-pod loop: plan, execute, report status.

Every observation triggers one iteration: compute the plan, start its actions, write the status. Actions run as separate
tasks and record their outcome in the ``PodState``; a failure is an outcome too. The loop ends only when the pod is gone
or when it is cancelled, and cancelling leaves every container as it is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from sandpool.api.events import EventSpec
from sandpool.api.resource import SharedObject
from sandpool.engine.clock import within
from sandpool.kube import late_binding
from sandpool.kube.errors import ApiError
from sandpool.node.pods import events
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
from sandpool.node.pods.binding import PodBinding
from sandpool.node.pods.context import NodeContext
from sandpool.node.pods.environment import ConfigError
from sandpool.node.pods.interfaces import ImageFailure, VolumeFailure
from sandpool.node.pods.plan import compute_plan
from sandpool.node.pods.prober import Prober
from sandpool.node.pods.resources import NotPrepared, PodResources
from sandpool.node.pods.spec import Pod
from sandpool.node.pods.state import NOT_PULLED, START_ERROR_CODE, ContainerPhase, FailureReason, Moment, PodState
from sandpool.node.pods.status_manager import StatusManager
from sandpool.node.pods.unsupported_fields import REASON, find_unsupported_changes, message
from sandpool.node.runtimes.runtime import RuntimeFailure
from sandpool.node.sleep.activity import ClientActivity

_log = logging.getLogger(__name__)

# Seconds before an action that failed on a bug is tried again.
_PAUSE: Final = 1.0


class PodWorker:
    """Start ``run`` as a task; it returns when nothing of the pod is left. ``state`` is the current state."""

    def __init__(self, state: PodState, context: NodeContext) -> None:
        self.state = state
        self.context = context
        self.resources = PodResources(context, state.pod)
        self.binding = PodBinding(self.resources.directory, state.pod.uid, expected=state.pod.is_late_bound)
        self.clients = ClientActivity(context.clock)
        self.prober = Prober(state.pod.uid, context.network, context.clock)
        self.stopped = asyncio.Event()  # no container runs and all resources are released
        self._changed = asyncio.Event()
        self._marked: set[str] = set()  # the IDs of containers that are known to be ready
        self._thawed = asyncio.Condition()
        self._status_manager = StatusManager(context, self._changed.set, self.pod_deleted)

    @property
    def first_container(self) -> str:
        """The container in which sandboxd takes the variables of a claim."""
        return self.state.pod.containers[0].name

    @property
    def first_run(self) -> str:
        """Identifies the current or last run of the first container."""
        return self.state[self.first_container].container_id

    async def variables(self) -> Mapping[str, str]:
        """The variables that a claim hands to the pod, once it has. Raises ``NotBound``."""
        return await self.binding.values(self.first_run, self.dial_sandboxd)

    async def dial_sandboxd(self) -> socket.socket:
        """Connect to the port at which sandboxd takes variables. Raises ``OSError``."""
        return await self.context.network.dial(self.state.pod.uid, late_binding.PORT, "127.0.0.1")

    # -- observations from outside ---------------------------------------------------------------------------------

    def pod_updated(self, object: SharedObject) -> None:
        """The API has a new version of the pod."""
        if late := find_unsupported_changes(self.state.pod.object, object):
            self.record_event(events.rejected(REASON, message(late)))
        self._set_state(self.state.changed(Pod.read(object)))

    def pod_deleted(self) -> None:
        """The pod no longer exists in the API."""
        self._set_state(replace(self.state, gone=True))

    def halt(self, grace: float) -> None:
        """Stop its containers within ``grace`` seconds and release its resources, but keep the pod: it continues when
        the node is back. ``stopped`` is set when that is done."""
        self._set_state(replace(self.state, halt=True, deadline=self.context.clock.monotonic() + grace))

    def sleep(self) -> None:
        """Freeze the pod until a client uses it."""
        self._set_state(replace(self.state, asleep=True))

    def wake(self) -> None:
        """Thaw the pod if it is asleep."""
        if self.state.asleep:
            self._set_state(replace(self.state, asleep=False))

    async def ensure_thawed(self) -> None:
        """Mark the pod as used and return once it is not frozen. Raises ``PodAsleep`` if its sandbox is suspended."""
        self.clients.touch()
        if self.clients.is_suspending:
            await self.clients.check_stays()
        if not self.state.in_use or self.state.asleep:
            self.state = replace(self.state, in_use=True, asleep=False)
        if not (self.state.frozen or self.state.freezing):
            return  # nothing to do, and a planning iteration would delay the client
        self._changed.set()
        async with self._thawed:
            await self._thawed.wait_for(lambda: not (self.state.frozen or self.state.freezing))

    # -- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.state = await self.resources.recover(self.state, self._now())
            if self.state.frozen and self.state.pod.sleep.freeze_after is not None and not self.state.pod.is_warm:
                self.state = replace(self.state, asleep=True)  # as an earlier agent left it
            for name, container in self.state.containers.items():
                if container.phase is ContainerPhase.RUNNING:
                    self._watch(name)
            while not self.state.discarded:
                self._changed.clear()
                before, now = self.state, self._now()
                self.state, plan = compute_plan(before, now)
                self._record_transitions(before, self.state)
                self._mark_ready()
                for action in plan.actions:
                    self._spawn(self._perform(action), str(action))
                if plan.actions:
                    await self.context.clock.sleep(0)  # actions begin before the status that reflects them
                requeue_at = self._status_manager.sync(self.state, self._now(), self._spawn)
                await self._until(min((at for at in (requeue_at, plan.requeue_at) if at is not None), default=None))

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._group.create_task(work, name=f"{what} of pod {self.state.pod.key}")

    def _now(self) -> Moment:
        return Moment(self.context.clock.monotonic(), self.context.clock.now())

    def _set_state(self, state: PodState) -> None:
        self.state = state
        self._changed.set()

    async def _until(self, at: float | None) -> None:
        if at is None:
            await self._changed.wait()
        elif not self._changed.is_set():
            with suppress(TimeoutError):
                await within(self.context.clock, max(at - self.context.clock.monotonic(), 0.0), self._until(None))

    def record_event(self, spec: EventSpec) -> None:
        """Record an event about the pod."""
        self.context.recorder.event(self.state.pod.reference, spec)

    def _record_transitions(self, before: PodState, after: PodState) -> None:
        if after.failure is not None and before.failure is None:
            self.record_event(events.deadline_exceeded(after.failure.message))
        for name, container in after.containers.items():
            if container.stop is None or before[name].stop is not None:
                continue
            failed = [kind for kind, probe_state in container.probe_states.items() if probe_state.failed]
            restarts = failed and not after.stopping
            self.record_event(events.killing_unhealthy(name, failed[0]) if restarts else events.killing(name))

    def _mark_ready(self) -> None:
        """Tell containers that they are ready: processes that start later are background processes."""
        for name, container in self.state.containers.items():
            if container.ready and container.container_id not in self._marked:
                self._marked.add(container.container_id)
                if (running := self.resources.running(name)) is not None:
                    running.mark_ready()

    # -- acting ----------------------------------------------------------------------------------------------------

    async def _perform(self, action: Action) -> None:
        try:
            await self._execute(action)
        except Exception:  # noqa: BLE001 - a bug must not end the other containers; the action is retried
            _log.exception("%s of pod %s failed", action, self.state.pod.key)
            await self.context.clock.sleep(_PAUSE)
            self._set_state(self._rolled_back(action))

    def _rolled_back(self, action: Action) -> PodState:
        """Return the state as if the action had not begun, or had failed."""
        problem, now = FailureReason("InternalError", "internal error of the node; see its log"), self._now()
        match action:
            case Prepare():
                return self.state.not_prepared(problem, now)
            case Start(name):
                return self.state.not_started(name, problem, now)
            case PostStart(name):
                return self.state.hook_failed(name, now)
            case PreStop(name):
                return self.state.stop_hook_done(name, now)
            case RunProbe(name, kind):
                return self.state.answered(name, kind, False, now)
            case Freeze() | Thaw():
                return replace(self.state, freezing=False)
            case Release() | Discard():
                return replace(self.state, releasing=False)
            case Signal(name) | Kill(name):
                stop = self.state[name].stop
                return (
                    self.state
                    if stop is None
                    else self.state.with_container(name, stop=replace(stop, signalled=False, killed=False))
                )

    async def _execute(self, action: Action) -> None:
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
                await self.resources.containers.signal(name)
            case Kill(name):
                await self.resources.containers.running[name].kill()
            case RunProbe():
                await self._run_probe(action)
            case Freeze():
                await self.resources.pause()
                self._set_state(self.state.froze())
            case Thaw():
                await self.resources.resume()
                self._set_state(self.state.thawed(self._now()))
                async with self._thawed:
                    self._thawed.notify_all()
            case Release(volumes):
                await self.resources.release(volumes=volumes)
                self._set_state(self.state.cleared())
                if self.state.halt and not self.state.deleting:
                    await self._status_manager.write_final_status(lambda: self.state, self._now())
                self.stopped.set()
            case Discard():
                await self._discard()

    async def _wait_for_background_turn(self) -> None:
        """Wait before a step that blocks the event loop for a while. Pods of warm pools start by the dozen; they take
        one such step at a time and yield to foreground work in between."""
        if self.state.pod.is_warm:
            await self.context.background_turn()

    async def _prepare(self) -> None:
        try:
            async with self.context.preparing:
                await self._wait_for_background_turn()
                addresses = await self.resources.prepare()
        except NotPrepared as error:
            self.record_event(events.not_prepared(error.reason, str(error)))
            self._set_state(self.state.not_prepared(FailureReason(error.reason, str(error)), self._now()))
        else:
            self._set_state(self.state.prepared(addresses))

    async def _start(self, name: str) -> None:
        pod, containers = self.state.pod, self.resources.containers
        container, known = pod.container(name), self.state[name]
        restarts = known.restarts + (known.termination is not None)
        reason, image = NOT_PULLED, None
        try:
            image = await containers.image(pod, container)
            if image.pulled:
                self.record_event(events.pulled(container.image))
            async with self.context.starting:
                reason = "CreateContainerError"
                await self._wait_for_background_turn()
                await containers.create(pod, container, image)
                reason = "RunContainerError"
                await self._wait_for_background_turn()
                container_id = await containers.start(container, image, restarts)
        except (ImageFailure, ConfigError, VolumeFailure, RuntimeFailure, ApiError, OSError) as error:
            reason = error.reason if isinstance(error, ImageFailure) else reason
            reason = "CreateContainerConfigError" if isinstance(error, ConfigError) else reason
            warning = events.pull_failed if isinstance(error, ImageFailure) else events.failed
            self.record_event(warning(reason, str(error)))
            problem, image_id = FailureReason(reason, str(error)), image.id if image else ""
            rejected = reason == "RunContainerError" and isinstance(error, RuntimeFailure)
            if rejected and not pod.restarts(container, START_ERROR_CODE):
                self._set_state(self.state.not_startable(name, problem.message, self._now(), image_id=image_id))
            else:
                self._set_state(self.state.not_started(name, problem, self._now(), image_id=image_id))
            return
        self.record_event(events.started(name))
        self._set_state(self.state.started(name, container_id, image.id, self._now()))
        self._watch(name)

    def _watch(self, name: str) -> None:
        self._spawn(self._wait(name), f"the end of {name}")

    async def _wait(self, name: str) -> None:
        known = self.state[name]
        termination = await self.resources.containers.termination(
            self.state.pod.container(name), known.since, known.container_id
        )
        self._set_state(self.state.ended(name, termination))
        known = self.state[name]
        if restart_at(known.backoff, termination.finished.at) > termination.finished.at and not self.state.stopping:
            self.record_event(events.back_off(name, str(self.state.pod.key)))

    async def _post_start(self, name: str) -> None:
        container, run = self.state.pod.container(name), self.state[name].container_id
        assert container.post_start is not None
        running = self.resources.containers.running[name]
        answer = await self.prober.run(container.post_start, container, running, None)
        if self.state[name].container_id != run:
            return  # the hook of an earlier run
        if answer.good:
            self._set_state(self.state.hook_done(name))
        else:
            self.record_event(events.hook_failed("FailedPostStartHook", f"PostStartHook failed: {answer.message}"))
            self._set_state(self.state.hook_failed(name, self._now()))

    async def _pre_stop(self, name: str, seconds: float) -> None:
        container, run = self.state.pod.container(name), self.state[name].container_id
        assert container.pre_stop is not None
        running = self.resources.containers.running[name]
        answer = await self.prober.run(container.pre_stop, container, running, seconds)
        if self.state[name].container_id != run:
            return  # the hook of an earlier run
        if not answer.good:
            self.record_event(events.hook_failed("FailedPreStopHook", f"PreStopHook failed: {answer.message}"))
        self._set_state(self.state.stop_hook_done(name, self._now()))

    async def _run_probe(self, run: RunProbe) -> None:
        container, known = self.state.pod.container(run.name), self.state[run.name]
        probe = container.probes[run.kind]
        running = self.resources.containers.running[run.name]
        answer = await self.prober.run(probe.action, container, running, probe.timeout)
        now = self._now()
        if self.state[run.name].container_id != known.container_id:
            return  # the probe of an earlier run
        probe_state = self.state[run.name].probe_states.get(run.kind)
        if not answer.good and probe_state is not None and probe_state.warns(now.at):
            self.record_event(events.unhealthy(run.kind, answer.message))
        self._set_state(self.state.answered(run.name, run.kind, answer.good, now))

    async def _discard(self) -> None:
        await self.resources.discard()
        if not self.state.gone:
            await self._status_manager.delete_pod(self.state, self._now())
        self.stopped.set()
        self._set_state(replace(self.state, discarded=True))
