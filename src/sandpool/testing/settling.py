"""Waiting until everybody waits, with a clock that stands still and a server that does not.

A manual clock knows when all tasks of the event loop wait. The server also works in threads, on its disk; as long as a
request is under way there, it is too early to let time pass.
"""

from __future__ import annotations

from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport


async def settle(clock: ManualClock, *wires: FaultyTransport) -> None:
    """Let everybody who talks through the wires do what can be done now."""
    before = -1
    while (sent := sum(len(wire.requests) for wire in wires)) != before:
        before = sent
        await clock.settle()
        for wire in wires:
            while wire.busy:
                await wire.quiet()
                await clock.settle()


async def pass_time(clock: ManualClock, seconds: float, *wires: FaultyTransport) -> None:
    """Let this much time pass, from one alarm to the next, and everybody settle after each."""
    end = clock.monotonic() + seconds
    await settle(clock, *wires)
    while (alarm := clock.next_alarm) is not None and clock.monotonic() + alarm <= end:
        await clock.jump()
        await settle(clock, *wires)
    await clock.advance(end - clock.monotonic())
    await settle(clock, *wires)
