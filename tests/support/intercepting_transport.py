"""A transport with which a test can act just before a request is sent, or hold back watch events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.testing.faulty_transport import FaultyTransport


async def nothing(request: Request) -> None:
    """The default of ``Interceptor.before``."""


class Interceptor:
    """``before`` is awaited before each request is sent. While watches are held, their events wait in order, and all of
    them arrive after the release. Watches that were open before are not affected."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.before: Callable[[Request], Awaitable[None]] = nothing
        self._flowing = asyncio.Event()
        self._flowing.set()

    @classmethod
    def behind(cls, wire: FaultyTransport) -> Interceptor:
        """Insert an interceptor between a transport and the one it wraps."""
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
