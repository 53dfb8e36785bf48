"""Lets work pass that nobody waits for, one step per turn of the event loop.

Claims that people wait for and the refill of pools run in one event loop, and a loop serves whoever is ready in the
order in which they became so. Three hundred replacements that are ready at once would stand in the way of the next
claim with all the work they bring. Behind a turnstile only the first of them is ready at any time: a claim that comes
waits for one step at most, and the others go on one by one as the loop turns. When there is nothing else to do the
loop turns as fast as they pass, so nothing is lost; when there is a lot, each turn takes long and they get little. That
is the right share without anybody having to know how busy it is, and it is never nothing: no limit, no clock.

First come, first through. Requests of a transport can be sent through a turnstile, see ``CourteousTransport``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from sandpool.kube.transport import Request, Transport, WatchEvent


class Turnstile:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Whether somebody has passed in this turn of the loop, or was let through. ``_open`` will be called then.
        self._taken = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def turn(self) -> None:
        """Wait until it is the caller's turn."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._open)
            return
        passing: asyncio.Future[None] = loop.create_future()
        self._waiting.append(passing)
        await passing

    def _open(self) -> None:
        while self._waiting:
            passing = self._waiting.popleft()
            if not passing.done():  # else whoever waited was cancelled
                passing.set_result(None)
                asyncio.get_running_loop().call_soon(self._open)
                return
        self._taken = False


class CourteousTransport:
    """Sends every request when it is its turn. Watches are opened at once."""

    def __init__(self, transport: Transport, turnstile: Turnstile) -> None:
        self.transport = transport
        self.turnstile = turnstile

    async def request(self, request: Request) -> Any:
        await self.turnstile.turn()
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        await self.transport.close()
