"""Background gate: admits background work while no claim waits, one step per iteration of the event loop.

Claims that users wait for and the refill of pools run in one event loop, and the loop runs ready callbacks in order.
Three hundred replacements that become ready at once would delay the next claim by all their work. Behind the gate only
one of them is ready at any time: a new claim waits for one step at most, and the rest follows one step per iteration.
An idle loop iterates as fast as the steps run, so the gate costs no throughput.

While a queue that the gate yields to is busy, the gate admits nothing. A load may never end, and then the pools would
run dry. So there are two limits: once a queue has been busy for ``max_delay`` without a break the gate admits work as
if it was idle, until there is a break; and no single entry waits for longer than ``max_delay``. The limit must not
apply to each step in turn: some background work has few workers, and a worker that waits for a second per step does
little in a minute.

The gate checks its queues whenever one of them finishes a key and whenever work is submitted; and by a timer, because a
queue may be busy with a single claim that waits for an API response.

``submit`` is the one entrance. ``wait`` is its form for coroutines, and two layers are built on it: requests go through
``transports.BackgroundTransport``, and keys of a shared queue are parked by ``ParkingQueue`` so that they occupy no
worker while they wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from sandpool.engine.clock import Clock
from sandpool.engine.workqueue.fair import PriorityLevels
from sandpool.engine.workqueue.queue import QueueObserver, WorkQueue

#: Seconds. A pool serves the burst it was sized for in less.
MAX_DELAY: Final = 1.0

K = TypeVar("K", bound=Hashable)


class BackgroundGate:
    """Admits entries in arrival order."""

    def __init__(self, clock: Clock, *, max_delay: float = MAX_DELAY) -> None:
        self.clock = clock
        self.max_delay = max_delay
        self._urgent: list[WorkQueue[Any]] = []
        # Entries that wait, with the time of their arrival.
        self._waiting: deque[tuple[float, Callable[[], bool]]] = deque()
        # Whether an entry was admitted in this iteration of the loop. ``_open`` is scheduled exactly then.
        self._taken = False
        # Since when a queue has been busy without a break; None: all are idle.
        self._busy_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of entries that wait."""
        return len(self._waiting)

    def yield_to(self, queue: WorkQueue[Any]) -> None:
        """Admit nothing while ``queue`` is busy, within the limits of ``max_delay``."""
        self._urgent.append(queue)
        queue.when_done(self._review)

    def submit(self, enter: Callable[[], bool]) -> None:
        """Call ``enter`` when it is admitted, which may be at once.

        ``enter`` returns False if it has nothing to do any more; the gate then admits the next entry instead.
        """
        if self._taken or self._waiting or self._is_blocked():
            self._wait(enter)
        elif enter():
            self._pass()

    async def wait(self) -> None:
        """Wait until the caller is admitted."""
        if not (self._taken or self._waiting or self._is_blocked()):
            self._pass()
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait(lambda: _finish(admitted))
        await admitted

    def _pass(self) -> None:
        self._taken = True
        asyncio.get_running_loop().call_soon(self._open)

    def _wait(self, enter: Callable[[], bool]) -> None:
        self._waiting.append((self.clock.monotonic(), enter))
        if not self._taken:
            self._open()

    def _is_blocked(self) -> bool:
        for queue in self._urgent:
            if queue.is_busy:
                break
        else:
            self._busy_since = None
            return False
        now = self.clock.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        return now - self._busy_since < self.max_delay

    def _review(self) -> None:
        if self._waiting and not self._taken:
            self._open()
        else:
            self._is_blocked()  # notes a break even if no entry waits

    def _check_again(self) -> None:
        self._alarm = None
        self._review()

    def _open(self) -> None:
        """Admit the first entry that may enter; it schedules this method for the rest."""
        self._taken = False
        blocked = self._is_blocked()
        while self._waiting:
            since, enter = self._waiting[0]
            if blocked and self.clock.monotonic() - since < self.max_delay:
                if self._alarm is None:
                    self._alarm = asyncio.get_running_loop().call_later(self.max_delay, self._check_again)
                return
            self._waiting.popleft()
            if enter():
                self._pass()
                return


def _finish(admitted: asyncio.Future[None]) -> bool:
    """Resume a coroutine; False if it was cancelled while it waited."""
    if admitted.done():
        return False
    admitted.set_result(None)
    return True


class ParkingQueue(WorkQueue[K]):
    """A work queue that parks background keys until the gate admits them.

    A parked key occupies no worker, so there is always a worker for the other keys. ``is_background`` is evaluated when
    a key is added, also if the key is parked already: a key that has become urgent is released at once. ``submit`` is
    that of a ``BackgroundGate``. After ``shut_down`` parked keys are dropped.
    """

    def __init__(
        self,
        is_background: Callable[[K], bool],
        submit: Callable[[Callable[[], bool]], object],
        *,
        group: Callable[[K], Hashable] = lambda key: None,
        observer: QueueObserver[K] | None = None,
    ) -> None:
        super().__init__(group=group, observer=observer)
        self.is_background = is_background
        self.submit = submit
        # The keys of _waiting that are not in _ready.
        self._parked: set[K] = set()
        self._parking: PriorityLevels[K] = PriorityLevels()  # exactly the keys of _parked
        # Entries submitted to the gate and not admitted yet, and keys that were admitted and not taken yet. Together
        # they are never more than there are workers.
        self._submitted = 0
        self._admitted: set[K] = set()

    async def get(self) -> K:
        key = await super().get()
        self._admitted.discard(key)
        if self._parked:
            self._submit()
        return key

    def shut_down(self) -> None:
        for key in self._parked:
            del self._waiting[key]
        self._parked.clear()
        self._parking = PriorityLevels()
        super().shut_down()

    def _wait(self, key: K, priority: int) -> None:
        if key in self._parked:
            self._wait_parked(key, priority)
        elif key not in self._waiting and self.is_background(key):
            self._park(key, priority)
        else:
            super()._wait(key, priority)

    def _wait_parked(self, key: K, priority: int) -> None:
        before, group = self._waiting[key], self.group(key)
        if not self.is_background(key):
            self._parked.remove(key)
            self._parking.remove(key, before, group)
            self._make_ready(key, max(before, priority))
        elif before < priority:
            self._parking.remove(key, before, group)
            self._parking.push(key, priority, group)
            self._waiting[key] = priority

    def _park(self, key: K, priority: int) -> None:
        if self._shut_down:
            return
        if not self._waiting and not self._processing:
            self._settled.clear()
        self._waiting[key] = priority
        self._parked.add(key)
        self._parking.push(key, priority, self.group(key))
        self._submit()

    def _submit(self) -> None:
        """Submit as many entries as there are parked keys and workers to take them."""
        while self._submitted < len(self._parked):
            if self._submitted + len(self._admitted) >= len(self._idle) + len(self._processing):
                return
            self._submitted += 1
            self.submit(self._enter)

    def _enter(self) -> bool:
        self._submitted -= 1
        if not self._parking.levels:
            return False
        key, priority = self._parking.pop()
        self._parked.remove(key)
        self._admitted.add(key)
        self._make_ready(key, priority)
        return True

    def _worker_became_idle(self) -> None:
        if self._parked:
            self._submit()
