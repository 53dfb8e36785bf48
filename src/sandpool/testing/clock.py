"""Time as a test tool: a clock that stands still until the test moves it.

A test of a five-minute grace period says ``await clock.advance(300)`` and takes a millisecond. Sleepers wake exactly at
their time and in its order, those of one instant in the order in which they lay down, and each has run as far as it can
before the next one wakes. Nothing depends on how fast the machine is, so what passes once passes always.

What makes this exact is knowing when *everybody* waits. asyncio has no call for that, so ``settle`` looks at the event
loop's list of callbacks that are ready to run: once it is empty while we run, nothing can happen any more before time
passes or news arrives from outside. Counting a fixed number of ``sleep(0)`` instead would break whenever a chain of
tasks grows by one link.

News from outside are threads and sockets. A real API server syncs its journal in a thread, for example: await the
write, or wait for the state itself, before advancing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

START = datetime(2026, 1, 1, tzinfo=UTC)

# Rounds of the event loop until we believe that somebody spins instead of waiting.
_PATIENCE = 100_000


class ManualClock:
    """A ``Clock`` for one event loop of asyncio. ``start`` is the wall time at which monotonic time is 0."""

    def __init__(self, start: datetime = START) -> None:
        self.start = start
        self._elapsed = 0.0
        # (when, number of the sleep, future): a heap. Futures of sleepers that were cancelled stay until their time.
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._sleeps = 0  # so far; makes sleepers of one instant wake in order

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps += 1
        heappush(self._sleepers, (self._elapsed + seconds, self._sleeps, alarm))
        await alarm

    @property
    def sleepers(self) -> int:
        """How many sleep now."""
        return sum(not alarm.done() for _, _, alarm in self._sleepers)

    @property
    def next_alarm(self) -> float | None:
        """Seconds until the first sleeper wakes; None if nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heappop(self._sleepers)
        return self._sleepers[0][0] - self._elapsed if self._sleepers else None

    async def settle(self) -> None:
        """Let every task run until all of them wait: for the clock, for each other, or for the world outside."""
        ready: Sized = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # the reasons are above
        for _ in range(_PATIENCE):
            await asyncio.sleep(0)
            if not ready:
                return
        raise RuntimeError(f"after {_PATIENCE} rounds some task still runs: it spins where it should wait")

    async def advance(self, seconds: float) -> None:
        """Let this much time pass, with everything that happens in it."""
        if seconds < 0:
            raise ValueError("time does not go back")
        await self.settle()
        end = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            await self._wake_first()
        self._elapsed = end
        await self.settle()

    async def jump(self) -> bool:
        """Go to the moment at which the next sleeper wakes. False: nobody sleeps, so nothing will ever happen."""
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
