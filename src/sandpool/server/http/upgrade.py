"""A connection after a protocol switch."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sandpool.kube.byte_stream import AsyncioByteStream

_BUFFER_BYTES = 1 << 18


class Owner(Protocol):
    def connection_lost(self, exc: Exception | None) -> None: ...


class SwitchedProtocol(asyncio.StreamReaderProtocol):
    """Takes the transport over from an HTTP connection, which still learns when it is lost."""

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._input = asyncio.StreamReader(limit=_BUFFER_BYTES, loop=loop)
        super().__init__(self._input, loop=loop)
        self._owner = owner
        self._loop_of_wire = loop

    def take_over(self, transport: asyncio.Transport, rest: bytes) -> AsyncioByteStream:
        """Take over the transport. ``rest`` are bytes that were already read."""
        if rest:
            self._input.feed_data(rest)
        self.connection_made(transport)
        transport.set_protocol(self)
        transport.resume_reading()
        return AsyncioByteStream(self._input, asyncio.StreamWriter(transport, self, self._input, self._loop_of_wire))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._owner.connection_lost(exc)
