"""Delaying layer: keys that are added to a queue at a later time.

* A key waits here at most once: of several requests the earliest time counts, with the highest priority.
* ``forget`` removes a key. A reconcile forgets its key when it starts, because it decides itself when the next one is
  due; otherwise timers set by earlier reconciles would keep enqueueing it.
* One timer serves all keys. It sleeps until the earliest is due and is reset only when an earlier key arrives. There is
  no polling.

A heap orders the keys by time, O(log n) per key. A key that is forgotten or rescheduled leaves its old entry in the
heap to be skipped; once most entries are stale the heap is rebuilt, which is amortised O(1) per key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from sandpool.engine.clock import Clock

_log = logging.getLogger(__name__)

# Stale entries up to this number do not justify a rebuild of the heap.
_SLACK = 64

K = TypeVar("K", bound=Hashable)


class DelayedAdds(Generic[K]):
    """Calls ``add`` with the key and its priority when the key is due."""

    def __init__(self, add: Callable[[K, int], None], clock: Clock) -> None:
        self.add = add
        self.clock = clock
        # For each key that waits: when it is due, the number of its heap entry, and its priority.
        self._due: dict[K, tuple[float, int, int]] = {}
        # (when, number, key). Contains the entry of every key of _due, and stale entries.
        self._heap: list[tuple[float, int, K]] = []
        self._places = 0  # numbers given so far; of keys due at the same time the first added comes first
        # Runs while a key waits and sleeps until _alarm, which is not after the due time of the earliest key.
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
        """Forget all keys and stop the timer."""
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
        """Add every key that is due. The heap then begins with a key that is not due, or is empty."""
        now = self.clock.monotonic()
        while self._heap and (self._heap[0][0] <= now or self._is_stale(self._heap[0])):
            place = heappop(self._heap)
            if not self._is_stale(place):
                key = place[2]
                _, _, priority = self._due.pop(key)
                self.add(key, priority)

    def _is_stale(self, place: tuple[float, int, K]) -> bool:
        waiting = self._due.get(place[2])
        return waiting is None or waiting[1] != place[1]

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [place for place in self._heap if not self._is_stale(place)]
            heapify(self._heap)


def _report(timer: asyncio.Task[None]) -> None:
    if not timer.cancelled() and timer.exception() is not None:
        _log.critical(
            "adding a delayed key failed; the other delayed keys wait until the next one is added",
            exc_info=timer.exception(),
        )
