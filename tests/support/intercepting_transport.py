"""A transport in front of another that lets a test do something at the worst moment: just before a request arrives, or
while the news of it is held up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.testing.faulty_transport import FaultyTransport


async def nothing(request: Request) -> None:
    """What happens before a request unless a test sets ``Interceptor.before``."""


class Interceptor:
    """``before`` is awaited before each request goes on. While the watches are held, what happens is not told: events
    wait in order and all of them come when they are released. Watches that were open already are not affected."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.before: Callable[[Request], Awaitable[None]] = nothing
        self._flowing = asyncio.Event()
        self._flowing.set()

    @classmethod
    def behind(cls, wire: FaultyTransport) -> Interceptor:
        """Put one between a wire and what it led to."""
        wire.transport = interceptor = cls(wire.transport)
        return interceptor

    def hold_watches(self) -> None:
        self._flowing.clear()

    def release_watches(self) -> None:
        self._flowing.set()

    async def request(self, request: Request) -> Any:
        await self.before(request)
        return await self.transport.request(request)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        async with aclosing(self.transport.stream(request)) as events:  # type: ignore[type-var]  # all can be closed
            async for event in events:
                await self._flowing.wait()
                yield event

    async def close(self) -> None:
        await self.transport.close()
