"""Keys that need a look, handed to workers one by one.

The promise to whoever adds a key, which is that of client-go's work queue:

* added ten times before a worker takes it, it is handed out once;
* it is never with two workers: added while one has it, it is handed out again after ``done``;
* many may add and many may take; after ``shut_down`` nothing can be added, and what waits is still handed out.

And two more, because here a claim somebody waits for and the refill of a pool share a queue:

* a key of higher priority goes before all of lower priority, and one added again with a higher priority moves up;
* within a priority no group of keys (a pool, say) starves another: they take turns, see ``queue_lane``;
* keys that nobody waits for can be held back until it is their turn, see ``hold_back``. They stand aside then and are
  not with a worker, so that there is always one for those that somebody waits for.

Adding, taking and finishing a key costs the same with ten keys and with 100,000. What waits for a time rather than for
a worker is not here but in ``delays``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from sandpool.engine.workqueue.fair import PriorityLevels

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue is shut down and empty: there is nothing more to do for a worker."""


def _one_group(key: Hashable) -> Hashable:
    return None


def _nobody_has_to(key: Hashable) -> bool:
    return False


class WorkQueue(Generic[K]):
    """``group`` says which group a key belongs to; it must give the same answer as long as the key is in the queue."""

    def __init__(self, *, group: Callable[[K], Hashable] = _one_group) -> None:
        self.group = group
        # Keys that wait for a worker, with their priority. Each stands in the lane of that priority, aside if it is in
        # _held, and no other key does. None of them is in _processing.
        self._waiting: dict[K, int] = {}
        self._held: set[K] = set()
        # Keys that are with a worker, with the priority they were taken at.
        self._processing: dict[K, int] = {}
        # Keys of _processing that were added meanwhile, with the highest priority asked for; they wait again when done.
        self._again: dict[K, int] = {}
        self._lanes: PriorityLevels[K] = PriorityLevels()
        self._aside: PriorityLevels[K] = PriorityLevels()
        self._has_to_wait: Callable[[K], bool] = _nobody_has_to
        self._line_up: Callable[[Callable[[], bool]], object] | None = None
        # How many turns have been asked for and not come, and which keys have had theirs and were not taken yet. There
        # are never more of both together than there are workers.
        self._turns = 0
        self._let_in: set[K] = set()
        # Workers that found nothing, in the order they came. One that was woken is not here any more.
        self._idle: deque[asyncio.Future[None]] = deque()
        self._shut_down = False
        self._listeners: list[Callable[[], object]] = []
        # Set exactly while nothing waits and nothing is with a worker.
        self._settled = asyncio.Event()
        self._settled.set()

    def __len__(self) -> int:
        """How many keys wait for a worker."""
        return len(self._waiting)

    @property
    def processing(self) -> int:
        """How many keys are with a worker."""
        return len(self._processing)

    def is_processing(self, key: K) -> bool:
        """Whether a key is with a worker."""
        return key in self._processing

    @property
    def is_shut_down(self) -> bool:
        return self._shut_down

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do that will be done: after ``shut_down`` that is only what workers have."""
        return bool(self._processing) or bool(self._waiting and not self._shut_down)

    def when_done(self, listener: Callable[[], object]) -> None:
        """Have a function called whenever a key was given back, and when there will be no more."""
        self._listeners.append(listener)

    def hold_back(self, has_to_wait: Callable[[K], bool], line_up: Callable[[Callable[[], bool]], object]) -> None:
        """Have keys wait for their turn that have to. ``line_up`` is given a function to call when it is the turn of
        one of them, which says whether there still was one; see ``Turnstile.line_up``.

        Whether a key has to wait is asked when it is added, also if it stands aside already. After ``shut_down`` those
        that stand aside are left.
        """
        self._has_to_wait = has_to_wait
        self._line_up = line_up

    def add(self, key: K, priority: int = 0) -> None:
        if self._shut_down:
            return
        if key in self._processing:
            self._again[key] = max(priority, self._again.get(key, priority))
        else:
            self._wait(key, priority)

    async def get(self) -> K:
        """The next key, which is the caller's until ``done``. Raises ``ShutDown`` when there will be no more."""
        while not self._lanes:
            if self._shut_down:
                raise ShutDown
            await self._until_woken()
        key, priority = self._lanes.pop()
        del self._waiting[key]
        self._processing[key] = priority
        if self._line_up is not None:
            self._let_in.discard(key)
            self._ask_for_turns()
        return key

    def priority(self, key: K) -> int:
        """The priority at which a key was taken that is with a worker now."""
        return self._processing[key]

    def done(self, key: K) -> None:
        """Give back a key taken by ``get``, whatever came of it."""
        del self._processing[key]
        again = self._again.pop(key, None)
        if again is not None:
            self._wait(key, again)
        self._settle()
        self._tell()

    def shut_down(self) -> None:
        """Accept nothing more. Workers get what waits, those without work are sent home."""
        self._shut_down = True
        for key in self._held:
            del self._waiting[key]
        self._held.clear()
        self._aside = PriorityLevels()
        self._settle()
        while self._idle:
            self._wake_one()
        self._tell()

    async def settled(self) -> None:
        """Wait until nothing waits and nothing is with a worker; after ``shut_down``, that is for good."""
        await self._settled.wait()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _settle(self) -> None:
        if not self._waiting and not self._processing:
            self._settled.set()

    def _wait(self, key: K, priority: int) -> None:
        before = self._waiting.get(key)
        if before is None:
            if self._has_to_wait(key):
                self._stand_aside(key, priority)
            else:
                self._enter(key, priority)
        elif key in self._held and not self._has_to_wait(key):
            self._leave(key, before)
            self._enter(key, max(before, priority))
        elif before < priority:
            self._move_up(key, before, priority)

    def _stand_aside(self, key: K, priority: int) -> None:
        if self._shut_down:
            return
        self._settled.clear()
        self._waiting[key] = priority
        self._held.add(key)
        self._aside.push(key, priority, self.group(key))
        self._ask_for_turns()

    def _enter(self, key: K, priority: int) -> None:
        self._settled.clear()
        self._waiting[key] = priority
        self._lanes.push(key, priority, self.group(key))
        self._wake_one()

    def _move_up(self, key: K, before: int, priority: int) -> None:
        lanes, group = self._aside if key in self._held else self._lanes, self.group(key)
        lanes.remove(key, before, group)
        lanes.push(key, priority, group)
        self._waiting[key] = priority

    def _leave(self, key: K, priority: int) -> None:
        self._held.remove(key)
        self._aside.remove(key, priority, self.group(key))

    # --- turns -------------------------------------------------------------------------------------------------------

    def _ask_for_turns(self) -> None:
        """Ask for as many as there are keys that stand aside, and workers to take them."""
        while self._turns < len(self._held) and self._line_up is not None:
            if self._turns + len(self._let_in) >= len(self._idle) + len(self._processing):
                return
            self._turns += 1
            self._line_up(self._turn)

    def _turn(self) -> bool:
        self._turns -= 1
        if not self._aside:
            return False
        key, priority = self._aside.pop()
        self._held.remove(key)
        self._let_in.add(key)
        self._enter(key, priority)
        return True

    async def _until_woken(self) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(woken)
        self._ask_for_turns()
        try:
            await woken
        except asyncio.CancelledError:
            if woken.cancelled():
                with suppress(ValueError):  # whoever wanted to wake it has taken it out already
                    self._idle.remove(woken)
            elif self._lanes:
                # Woken and cancelled at once: the key this worker was woken for needs another one.
                self._wake_one()
            raise

    def _wake_one(self) -> None:
        while self._idle:
            woken = self._idle.popleft()
            if not woken.done():
                woken.set_result(None)
                return
