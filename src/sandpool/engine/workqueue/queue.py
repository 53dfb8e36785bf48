"""Work queue: keys to reconcile, handed to workers one by one.

The contract is that of client-go's work queue:

* a key added ten times before a worker takes it is handed out once;
* a key is never with two workers: added while a worker has it, it is handed out again after ``done``;
* there may be many producers and many workers; after ``shut_down`` nothing can be added, and keys that wait are still
  handed out.

The order is that of ``fair.PriorityLevels``: the highest priority first, and within a priority the groups of keys take
turns. A key that is added again with a higher priority moves up. Other features are layers around this queue: keys
that wait for a time are in ``delaying``, keys that wait for the background gate in ``background.ParkingQueue``, and
``metrics.QueueMetrics`` observes a queue.

Adding, taking and finishing a key are O(1).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from sandpool.engine.workqueue.fair import PriorityLevels

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class ShutDown(Exception):
    """The queue is shut down and empty: the worker can end."""


class QueueObserver(Protocol[K_contra]):
    """Observes one queue, for example to export metrics."""

    def attach(self, queue: WorkQueue[Any]) -> None:
        """The queue to observe; called once, by its constructor."""
        ...

    def added(self, key: K_contra) -> None:
        """A key was added, also if it was there already."""
        ...

    def taken(self, key: K_contra) -> None:
        """A worker has taken a key."""
        ...

    def finished(self, key: K_contra) -> None:
        """The worker is about to give the key back."""
        ...

    def retried(self) -> None:
        """A key was added again because its reconcile failed."""
        ...


def _one_group(key: Hashable) -> Hashable:
    return None


class WorkQueue(Generic[K]):
    """``group`` maps a key to its group; the result must not change while the key is in the queue."""

    def __init__(
        self, *, group: Callable[[K], Hashable] = _one_group, observer: QueueObserver[K] | None = None
    ) -> None:
        self.group = group
        self.observer = observer
        # Keys that wait for a worker, with their priority. None of them is in _processing.
        self._waiting: dict[K, int] = {}
        # The keys of _waiting that a worker may take, in order. A layer may withhold the others.
        self._ready: PriorityLevels[K] = PriorityLevels()
        # Keys that are with a worker, with the priority at which they were taken.
        self._processing: dict[K, int] = {}
        # Keys of _processing that were added meanwhile, with the highest priority asked for; they wait again when done.
        self._again: dict[K, int] = {}
        # Workers without a key, in arrival order. A worker that got a key is no longer in it.
        self._idle: deque[asyncio.Future[None]] = deque()
        self._shut_down = False
        self._listeners: list[Callable[[], object]] = []
        # Set exactly while no key waits and no key is with a worker.
        self._settled = asyncio.Event()
        self._settled.set()
        if observer is not None:
            observer.attach(self)

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._waiting)

    @property
    def processing(self) -> int:
        """Number of keys that are with a worker."""
        return len(self._processing)

    @property
    def is_busy(self) -> bool:
        """Whether there is work that will be done. After ``shut_down`` only the keys that workers have count."""
        return bool(self._processing) or bool(self._waiting and not self._shut_down)

    def depth_by_priority(self) -> dict[int, int]:
        """Number of waiting keys per priority."""
        depths: dict[int, int] = {}
        for priority in self._waiting.values():
            depths[priority] = depths.get(priority, 0) + 1
        return depths

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` after every ``done`` and after ``shut_down``."""
        self._listeners.append(listener)

    def add(self, key: K, priority: int = 0) -> None:
        if self._shut_down:
            return
        if self.observer is not None:
            self.observer.added(key)
        if key in self._processing:
            self._again[key] = max(priority, self._again.get(key, priority))
        else:
            self._wait(key, priority)

    async def get(self) -> K:
        """Take the next key, which is the caller's until ``done``. Raises ``ShutDown`` when there will be no more."""
        while not self._ready.levels:
            if self._shut_down:
                raise ShutDown
            await self._until_woken()
        key, priority = self._ready.pop()
        del self._waiting[key]
        self._processing[key] = priority
        if self.observer is not None:
            self.observer.taken(key)
        return key

    def priority(self, key: K) -> int:
        """Return the priority at which the worker took a key that is being processed."""
        return self._processing[key]

    def done(self, key: K) -> None:
        """Give back a key taken by ``get``, whatever the outcome."""
        if self.observer is not None:
            self.observer.finished(key)
        del self._processing[key]
        again = self._again.pop(key, None)
        if again is not None:
            self._wait(key, again)
        self._settle()

    def retried(self) -> None:
        """Note that a key was added again because its reconcile failed."""
        if self.observer is not None:
            self.observer.retried()

    def shut_down(self) -> None:
        """Accept no more keys. Workers get the keys that wait; idle workers get ``ShutDown``."""
        self._shut_down = True
        self._settle()
        while self._idle:
            self._wake_one()

    async def settled(self) -> None:
        """Wait until no key waits and no key is with a worker; after ``shut_down`` that is final."""
        await self._settled.wait()

    def _settle(self) -> None:
        if not self._waiting and not self._processing:
            self._settled.set()
        for listener in self._listeners:
            listener()

    def _wait(self, key: K, priority: int) -> None:
        before = self._waiting.get(key)
        if before is None:
            self._make_ready(key, priority)
        elif before < priority:
            group = self.group(key)
            self._ready.remove(key, before, group)
            self._ready.push(key, priority, group)
            self._waiting[key] = priority

    def _make_ready(self, key: K, priority: int) -> None:
        if not self._waiting and not self._processing:
            self._settled.clear()
        self._waiting[key] = priority
        self._ready.push(key, priority, self.group(key))
        self._wake_one()

    async def _until_woken(self) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(woken)
        self._worker_became_idle()
        try:
            await woken
        except asyncio.CancelledError:
            if woken.cancelled():
                with suppress(ValueError):  # _wake_one may have removed it already
                    self._idle.remove(woken)
            elif self._ready.levels:
                # Cancelled after it got a key: the key needs another worker.
                self._wake_one()
            raise

    def _worker_became_idle(self) -> None:
        """For layers that withhold keys until there is a worker for them."""

    def _wake_one(self) -> None:
        while self._idle:
            woken = self._idle.popleft()
            if not woken.done():
                woken.set_result(None)
                return
