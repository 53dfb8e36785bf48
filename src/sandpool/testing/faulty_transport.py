"""A transport with injected faults: requests that fail or are never delivered, and lost responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Any

from sandpool.kube.transport import Request, Transport, WatchEvent


class Fault(Enum):
    CUT = "the request is not delivered; the sender gets an error"
    HOLD = "the request is not delivered; the sender waits for ever"
    LOSE = "the request is executed; its response is lost"
    STALL = "the request is executed; the sender waits for ever"


def no_fault(request: Request) -> None:
    """The default of ``FaultyTransport.fault``."""


class FaultyTransport:
    """A transport on top of another. ``fault`` returns the fault of a request, or an exception to raise.

    ``requests`` are all requests sent, in order. ``quiet`` waits until no request is in flight: with a manual clock and
    a real server, time must not advance while the server works.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Fault | Exception | None] = no_fault
        #: False: clients made afterwards write metadata and status separately, as behind kube-apiserver.
        self.stores_metadata_with_status: bool | None = None
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def request(self, request: Request) -> Any:
        self.requests.append(request)
        fault = self.fault(request)
        if isinstance(fault, Exception):
            raise fault
        if fault is Fault.CUT:
            raise ConnectionError("the connection is cut")
        if fault is Fault.HOLD:
            await asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._quiet.clear()
        try:
            answer = await self.transport.request(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()
        if fault is Fault.LOSE:
            raise ConnectionError("the answer was lost")
        if fault is Fault.STALL:
            await asyncio.get_running_loop().create_future()
        return answer

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    def heal(self) -> None:
        """Stop injecting faults."""
        self.fault = no_fault

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    async def quiet(self) -> None:
        await self._quiet.wait()

    async def close(self) -> None:
        await self.transport.close()
