"""A manual clock for tests: time stands still until the test advances it.

A test of a five-minute grace period calls ``await clock.advance(300)`` and takes a millisecond. Sleepers wake exactly
at their time; those of one instant wake in the order in which they began to sleep, and each runs as far as it can
before the next one wakes. Nothing depends on the speed of the machine.

This is exact because the clock knows when *all* tasks wait. asyncio has no call for that, so ``settle`` reads the event
loop's list of ready callbacks. Once the list is empty, nothing can happen before time advances or external input
arrives. A fixed number of ``sleep(0)`` would break whenever a chain of tasks grows by one link.

External input comes from threads and sockets. A real API server, for example, syncs its journal in a thread: await the
write, or wait for the state itself, before advancing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

START = datetime(2026, 1, 1, tzinfo=UTC)

# Rounds of the event loop after which a task must be spinning.
_MAX_ROUNDS = 100_000


class ManualClock:
    """A ``Clock`` for one event loop of asyncio. ``start`` is the wall time at which monotonic time is 0."""

    def __init__(self, start: datetime = START) -> None:
        self.start = start
        self._elapsed = 0.0
        # (when, number of the sleep, future): a heap. Futures of sleepers that were cancelled stay until their time.
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._sleeps = 0  # so far; makes sleepers of one instant wake in order

    def now(self) -> datetime:
        """Return the current time of day."""
        return self.start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds since the start."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Sleep until the clock has moved on by ``seconds``."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps += 1
        heappush(self._sleepers, (self._elapsed + seconds, self._sleeps, alarm))
        await alarm

    @property
    def sleepers(self) -> int:
        """The number of sleeping tasks."""
        return sum(not alarm.done() for _, _, alarm in self._sleepers)

    @property
    def next_alarm(self) -> float | None:
        """Seconds until the first sleeper wakes; None if there is none."""
        while self._sleepers and self._sleepers[0][2].done():
            heappop(self._sleepers)
        return self._sleepers[0][0] - self._elapsed if self._sleepers else None

    async def settle(self) -> None:
        """Run all tasks until each waits for the clock, another task or external input."""
        ready: Sized = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # the reasons are above
        for _ in range(_MAX_ROUNDS):
            await asyncio.sleep(0)
            if not ready:
                return
        raise RuntimeError(f"after {_MAX_ROUNDS} rounds some task still runs: it spins instead of waiting")

    async def advance(self, seconds: float) -> None:
        """Advance the time and wake every sleeper that is due, in order."""
        if seconds < 0:
            raise ValueError("time does not go back")
        await self.settle()
        end = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            await self._wake_first()
        self._elapsed = end
        await self.settle()

    async def jump(self) -> bool:
        """Advance to the next sleeper and wake it. Returns False if no task sleeps."""
        await self.settle()
        if self.next_alarm is None:
            return False
        await self._wake_first()
        return True

    async def _wake_first(self) -> None:
        when, _, alarm = heappop(self._sleepers)
        if not alarm.done():  # else its sleeper was cancelled
            self._elapsed = when
            alarm.set_result(None)
            await self.settle()
