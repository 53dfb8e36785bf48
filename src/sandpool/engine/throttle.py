"""A transport that sends no more than so many requests a second, for API servers that would rather be asked slowly.

Whoever asks for more waits, in the order of asking. Requests that were not sent for a while may be sent at once, up to
a burst. The limit belongs outside of a fence (``lease_fence``): a write that has waited is checked when it is sent, not
when it was asked for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from sandpool.engine.clock import Clock
from sandpool.kube.transport import Request, Transport, WatchEvent


class Rate:
    """So many turns a second, and ``burst`` at once after a pause. Several transports may share one."""

    def __init__(self, per_second: float, burst: int, clock: Clock) -> None:
        if per_second <= 0 or burst <= 0:
            raise ValueError(f"{per_second:g} a second and {burst} at once is never")
        self.per_second = per_second
        self.burst = burst
        self.clock = clock
        # When the last turn was due, had all of them been evenly spread.
        self._last = clock.monotonic() - burst / per_second

    async def turn(self) -> None:
        now = self.clock.monotonic()
        self._last = max(self._last, now - self.burst / self.per_second) + 1 / self.per_second
        if self._last > now:
            await self.clock.sleep(self._last - now)


class ThrottledTransport:
    def __init__(self, transport: Transport, rate: Rate) -> None:
        self.transport = transport
        self.rate = rate

    async def request(self, request: Request) -> Any:
        await self.rate.turn()
        return await self.transport.request(request)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        await self.rate.turn()
        async with aclosing(cast(AsyncGenerator[WatchEvent, None], self.transport.stream(request))) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        await self.transport.close()
