"""Keys that are to be added to a queue later.

* A key waits here at most once: of several times asked for, the earliest counts, with the highest priority.
* ``forget`` takes a key out. A reconcile that starts forgets its key, because it will say itself when the next one is
  due; otherwise the timers of passes long gone would keep waking it.
* However many keys wait, one timer runs: it sleeps until the earliest is due, and is set anew only when an earlier one
  comes. Nothing polls.

A heap orders the keys by time, O(log n) per key. A key that is forgotten or gets an earlier time leaves its old place
in the heap as it is, to be skipped; once most of the heap is such leftovers it is built anew, which is O(1) per key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from sandpool.engine.clock import Clock

_log = logging.getLogger(__name__)

# Leftovers that are not worth building the heap anew.
_SLACK = 64

K = TypeVar("K", bound=Hashable)


class DelayedAdds(Generic[K]):
    """``add`` is called with the key and its priority when the time has come."""

    def __init__(self, add: Callable[[K, int], None], clock: Clock) -> None:
        self.add = add
        self.clock = clock
        # Of each key that waits: when it is due, the number of its place in the heap, and its priority.
        self._due: dict[K, tuple[float, int, int]] = {}
        # (when, number, key). Contains the place of every key of _due, and leftovers whose number no key of _due has.
        self._heap: list[tuple[float, int, K]] = []
        self._places = 0  # given so far; of keys due at the same time the first added is first
        # Runs whenever a key waits, and sleeps until _alarm, which is not later than the earliest key is due.
        self._timer: asyncio.Task[None] | None = None
        self._alarm = 0.0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def add_after(self, key: K, seconds: float, priority: int = 0) -> None:
        when = self.clock.monotonic() + seconds
        waiting = self._due.get(key)
        if waiting is not None:
            priority = max(priority, waiting[2])
            if waiting[0] <= when:
                self._due[key] = (waiting[0], waiting[1], priority)
                return
        if seconds <= 0:
            self.forget(key)
            self.add(key, priority)
            return
        self._places += 1
        self._due[key] = (when, self._places, priority)
        heappush(self._heap, (when, self._places, key))
        self._sweep()
        self._set_timer(when)

    def forget(self, key: K) -> None:
        self._due.pop(key, None)

    def close(self) -> None:
        """Forget everything and stop the timer."""
        self._due.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, when: float) -> None:
        if self._timer is not None and not self._timer.done():
            if self._alarm <= when:
                return
            self._timer.cancel()
        self._alarm = when
        self._timer = asyncio.create_task(self._ring(), name="delayed keys")
        self._timer.add_done_callback(_report)

    async def _ring(self) -> None:
        while self._due:
            await self.clock.sleep(self._alarm - self.clock.monotonic())
            self._hand_over()
            if self._heap:
                self._alarm = self._heap[0][0]
        self._heap.clear()

    def _hand_over(self) -> None:
        """Add every key that is due, and leave a heap that begins with a key that is not."""
        now = self.clock.monotonic()
        while self._heap and (self._heap[0][0] <= now or self._is_left_over(self._heap[0])):
            place = heappop(self._heap)
            if not self._is_left_over(place):
                key = place[2]
                _, _, priority = self._due.pop(key)
                self.add(key, priority)

    def _is_left_over(self, place: tuple[float, int, K]) -> bool:
        waiting = self._due.get(place[2])
        return waiting is None or waiting[1] != place[1]

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [place for place in self._heap if not self._is_left_over(place)]
            heapify(self._heap)


def _report(timer: asyncio.Task[None]) -> None:
    if not timer.cancelled() and timer.exception() is not None:
        _log.critical("adding a delayed key failed; others wait until the next one comes", exc_info=timer.exception())
