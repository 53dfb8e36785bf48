"""The loop that lets pods fall asleep: samples their use, asks the policy, freezes and suspends.

It looks only at pods whose annotations ask for it, and only while they run and no warm pool owns them. A sample of a
running pod reads its CPU time and lists its processes, four times in the time after which the pod falls asleep; a
sample of a frozen pod reads nothing. The router is asked only when a pod would fall asleep otherwise.

**No request meets a pod that is about to sleep.** The router closes its idle connections to the pod in the same step in
which it answers that it serves no request. A later request therefore opens a connection, which passes through the pod's
worker. After the answer the monitor checks that no client came meanwhile and marks the pod as asleep, without waiting
in between. A client that comes later finds the mark and thaws the pod (``PodWorker.ensure_thawed``). While a sandbox is
being suspended, clients wait in the same place for the answer of the API, and go on with this pod or with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from sandpool.api.resource import Key
from sandpool.api.sleep import SleepSettings
from sandpool.engine.clock import Clock, within
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.node.pods import events
from sandpool.node.pods.state import PodState
from sandpool.node.pods.worker import PodWorker
from sandpool.node.runtimes.runtime import RuntimeFailure
from sandpool.node.sleep.policy import Decision, Idleness, Sample, Sleep, decide, interval, observe
from sandpool.node.sleep.suspension import is_suspended, sandbox_of, suspend_sandbox

_log = logging.getLogger(__name__)

# Seconds in which the router must answer. A router that does not is taken to serve requests.
_ANSWER_SECONDS: Final = 5.0
# Pods per question, which bounds the length of a message.
_MAX_PODS: Final = 256


class RouterRequests(Protocol):
    """A router whose connections to pods the node has made."""

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        """Return for how many seconds the router has sent no request to each of these pods, by UID; 0 while it serves
        one. Close the idle connections to pods for which that is at least the given number, so that the next request
        opens a new one and is noticed. Raises ``OSError`` or ``ValueError`` if the router does not answer."""
        ...


class NoRouter:
    """Requests where no router runs beside the node."""

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        return dict.fromkeys(pods, float("inf"))


@dataclass(slots=True)
class _Known:
    """The state of one pod between two samples."""

    settings: SleepSettings
    idleness: Idleness | None = None
    look_at: float = 0.0


class SleepMonitor:
    """``run`` must run as a task. ``workers`` are those of all pods of the node, by UID. ``changed`` is called when
    a pod has changed. ``freezes`` is False where clients reach pods without passing through the node."""

    def __init__(self, workers: Mapping[str, PodWorker], client: Client, clock: Clock, *, freezes: bool = True) -> None:
        self.workers = workers
        self.client = client
        self.clock = clock
        self.freezes = freezes
        self.requests: RouterRequests = NoRouter()
        #: Whether a request waits until a sandbox is resumed. Its pod is in use before the request reaches it.
        self.is_waking: Callable[[Key], bool] = lambda sandbox: False
        self.transitions = {"frozen": 0, "suspended": 0}  # how often pods fell asleep
        self._known: dict[str, _Known] = {}
        self._reported: dict[str, tuple[str, ...]] = {}  # problems of annotations, by UID
        self._changed = asyncio.Event()
        self._suspending: set[asyncio.Task[None]] = set()

    def changed(self, worker: PodWorker) -> None:
        """The pod is new or has changed."""
        uid, settings = worker.state.pod.uid, worker.state.pod.sleep
        if not self.freezes:
            settings = replace(settings, freeze_after=None, suspend_after=None)
        elif sandbox_of(worker.state.pod.object) is None:
            settings = replace(settings, suspend_after=None)
        self._report(worker, settings)
        if settings.freeze_after is None:
            worker.wake()
        known = self._known.get(uid)
        if not settings.sleeps:
            self._known.pop(uid, None)
        elif known is None or known.settings != settings:
            self._known[uid] = _Known(settings, None if known is None else known.idleness)
            self._changed.set()
        elif known.idleness is None and may_sleep(worker.state):
            known.look_at = 0.0
            self._changed.set()

    @property
    def frozen(self) -> int:
        """The number of pods that are frozen because they were not used."""
        return sum(worker.state.asleep and worker.state.frozen for worker in self.workers.values())

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._known.pop(uid, None)
        self._reported.pop(uid, None)

    async def run(self) -> None:
        try:
            while True:
                self._changed.clear()
                await self.look()
                at = min((known.look_at for known in self._known.values()), default=None)
                await self._until(at)
        finally:
            for task in self._suspending:
                task.cancel()
            await asyncio.gather(*self._suspending, return_exceptions=True)

    async def _until(self, at: float | None) -> None:
        if at is None:
            await self._changed.wait()
            return
        try:
            await within(self.clock, max(at - self.clock.monotonic(), 0.0), self._until(None))
        except TimeoutError:
            return

    async def look(self) -> None:
        """Look at all pods that are due."""
        now = self.clock.monotonic()
        tired = []
        for uid, known in list(self._known.items()):
            worker = self.workers.get(uid)
            if worker is None or known.look_at > now:
                continue
            if (await self._sampled(worker, known)).sleep is not Sleep.NONE:
                tired.append(uid)
        for first in range(0, len(tired), _MAX_PODS):
            await self._settle(tired[first : first + _MAX_PODS])

    async def _sampled(self, worker: PodWorker, known: _Known) -> Decision:
        """Sample a pod and decide about it by what costs little to know."""
        now = self.clock.monotonic()
        if worker.clients.is_suspended and not worker.state.stopping:
            await self._check_suspended(worker)
        if not may_sleep(worker.state) or worker.clients.is_suspending:
            known.idleness, known.look_at = None, now + interval(known.settings)
            return Decision(Sleep.NONE, known.look_at)
        sample = await self._sample(worker, known.idleness)
        known.idleness = None if sample is None else observe(known.idleness, sample, known.settings)
        return self._decided(worker, known)

    async def _sample(self, worker: PodWorker, before: Idleness | None) -> Sample | None:
        """None if a container ends at this moment."""
        if worker.state.frozen and before is not None:
            used, has_jobs = before.cpu_seconds, False  # nothing has happened since it was frozen
        else:
            try:
                used = sum([(await each.usage()).cpu_nanoseconds for each in _running(worker)]) / 1e9
                has_jobs = _has_jobs(worker)
            except (OSError, RuntimeFailure):
                return None
        clients = worker.clients
        return Sample(self.clock.monotonic(), self._connected(worker), clients.last, used, has_jobs)

    def _connected(self, worker: PodWorker) -> int:
        """The clients of a pod, with those that are about to come. A sandbox and its pod have the same name."""
        return worker.clients.connected + self.is_waking(worker.state.pod.key)

    def _decided(self, worker: PodWorker, known: _Known) -> Decision:
        now = self.clock.monotonic()
        if known.idleness is None:
            decision = Decision(Sleep.NONE, now + interval(known.settings))
        else:
            decision = decide(known.settings, known.idleness, now, frozen=worker.state.frozen or worker.state.asleep)
        known.look_at = decision.look_at
        return decision

    async def _settle(self, tired: Sequence[str]) -> None:
        """Ask the router about pods that would fall asleep, and act on those that still would."""
        idle = await self._idle_requests(tired)
        now = self.clock.monotonic()
        for uid in tired:
            worker, known = self.workers.get(uid), self._known.get(uid)
            if worker is None or known is None or known.idleness is None or not may_sleep(worker.state):
                continue
            if worker.clients.is_suspending:
                continue
            in_use = self._connected(worker) or (not worker.state.frozen and _has_jobs(worker))
            used = now if in_use else max(worker.clients.last, now - idle.get(uid, 0.0))
            known.idleness = known.idleness.used(used)
            self._act(worker, known)

    async def _idle_requests(self, tired: Sequence[str]) -> Mapping[str, float]:
        """Seconds without a request by pod, after closing idle connections. A pod that is missing is in use."""
        now = self.clock.monotonic()
        asked = {}
        for uid in tired:
            known = self._known.get(uid)
            if known is not None and known.idleness is not None:
                asked[uid] = min(now - known.idleness.since, known.settings.shortest)
        try:
            return await within(self.clock, _ANSWER_SECONDS, _as_coroutine(self.requests, asked))
        except (OSError, ValueError) as error:  # TimeoutError, too
            _log.warning("no pod falls asleep now, because the router does not say what it serves: %s", error)
            return {}

    def _act(self, worker: PodWorker, known: _Known) -> None:
        """Do what the policy says now. Nothing is awaited from the last check to the mark."""
        match self._decided(worker, known).sleep:
            case Sleep.FREEZE:
                worker.sleep()
                self.transitions["frozen"] += 1
            case Sleep.SUSPEND:
                worker.clients.begin_suspending()
                task = asyncio.create_task(self._suspend(worker, known), name=f"suspend {worker.state.pod.key}")
                self._suspending.add(task)
                task.add_done_callback(self._suspending.discard)

    async def _suspend(self, worker: PodWorker, known: _Known) -> None:
        suspended = False
        try:
            suspended = await suspend_sandbox(self.client, self.clock, worker.state.pod.object)
        except (ApiError, OSError) as error:
            _log.warning("the sandbox of pod %s does not fall asleep now: %s", worker.state.pod.key, error)
        finally:
            self.transitions["suspended"] += suspended
            known.idleness = None  # if it is not suspended, its time begins again
            worker.clients.end_suspending(suspended)

    async def _check_suspended(self, worker: PodWorker) -> None:
        """Let clients go on if a user has resumed the sandbox before the controller deleted the pod."""
        with suppress(ApiError, OSError):
            if not await is_suspended(self.client, worker.state.pod.object):
                worker.clients.stays()

    def _report(self, worker: PodWorker, settings: SleepSettings) -> None:
        uid = worker.state.pod.uid
        if settings.problems and self._reported.get(uid) != settings.problems:
            self._reported[uid] = settings.problems
            for problem in settings.problems:
                worker.record_event(events.sleep_not_understood(problem))


def may_sleep(state: PodState) -> bool:
    """Whether a pod is one that may fall asleep: its containers are ready, and no warm pool owns it."""
    if state.stopping or state.pod.is_warm:
        return False
    return all(state[container.name].ready for container in state.pod.containers)


def _running(worker: PodWorker) -> list[Any]:
    found = (worker.resources.running(name) for name in worker.state.containers)
    return [each for each in found if each is not None and each.is_running]


def _has_jobs(worker: PodWorker) -> bool:
    """Whether a process runs, or may run, that a client has started."""
    try:
        counts = [each.background_processes() for each in _running(worker)]
    except OSError:
        return True  # a container ends at this moment
    return any(count is None or count > 0 for count in counts)


async def _as_coroutine(requests: RouterRequests, pods: Mapping[str, float]) -> Mapping[str, float]:
    return await requests.quiesce(pods)
