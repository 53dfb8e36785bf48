"""A transport that stops writing the moment the lease is not held any more.

Losing the lease cancels the work, but a process that was frozen (a suspended machine, a starved container) wakes up in
the middle of it and would go on until the event loop gets round to the cancellation. This asks the clock before every
write. What is already on its way when the deadline passes cannot be called back; for that the lease outlasts the
deadline by some seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from sandpool.engine.lease import LeaseLost
from sandpool.kube.transport import Request, Transport, WatchEvent


class FencedTransport:
    """Carries reads always and writes only while ``held`` says so; raises ``LeaseLost`` otherwise."""

    def __init__(self, transport: Transport, held: Callable[[], bool]) -> None:
        self.transport = transport
        self.held = held

    async def request(self, request: Request) -> Any:
        if request.method != "GET" and not self.held():
            raise LeaseLost(f"{request.method} {request.path} was not sent: the lease is not held")
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        await self.transport.close()
