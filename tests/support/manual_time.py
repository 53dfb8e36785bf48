"""Time of a manual clock that passes in front of a server that runs in real time."""

from __future__ import annotations

from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.quiescence import settle


async def pass_time(clock: ManualClock, seconds: float, *wires: FaultyTransport) -> None:
    """Advance the time from one timer to the next, and settle after each."""
    end = clock.monotonic() + seconds
    await settle(clock, *wires)
    while (alarm := clock.next_alarm) is not None and clock.monotonic() + alarm <= end:
        await clock.jump()
        await settle(clock, *wires)
    await clock.advance(end - clock.monotonic())
    await settle(clock, *wires)
