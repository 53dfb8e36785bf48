"""Settle all tasks with a manual clock and a server that runs in real time.

A manual clock knows when all tasks of the event loop wait. The server also writes its journal in threads; while a
request is in flight there, time must not advance.
"""

from __future__ import annotations

from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport


async def settle(clock: ManualClock, *wires: FaultyTransport) -> None:
    """Run until all tasks wait and no request of the transports is in flight."""
    before = -1
    while (sent := sum(len(wire.requests) for wire in wires)) != before:
        before = sent
        await clock.settle()
        for wire in wires:
            while wire.busy:
                await wire.quiet()
                await clock.settle()


async def pass_time(clock: ManualClock, seconds: float, *wires: FaultyTransport) -> None:
    """Advance the time from one timer to the next, and settle after each."""
    end = clock.monotonic() + seconds
    await settle(clock, *wires)
    while (alarm := clock.next_alarm) is not None and clock.monotonic() + alarm <= end:
        await clock.jump()
        await settle(clock, *wires)
    await clock.advance(end - clock.monotonic())
    await settle(clock, *wires)
