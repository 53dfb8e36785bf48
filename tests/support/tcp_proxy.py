"""A TCP proxy that a test can cut, hold and open again, as networks do.

It does not interpret the bytes, so they may be encrypted. A cut loses the bytes in flight in both directions, including
responses to requests that were executed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK = 64 * 1024


class TcpProxy:
    """Forwards a free loopback port to ``host`` and ``port`` for the length of an ``async with``."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.target = port
        self.passages = 0  # number of forwarded connections
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._crossings: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    def cut(self) -> None:
        """Close all connections at once. New ones are possible."""
        for end in self._ends:
            end.transport.abort()

    def hold(self) -> None:
        """Close all connections. New ones are accepted, and no bytes pass until ``open``."""
        self._flowing.clear()
        self.cut()

    def open(self) -> None:
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for crossing in self._crossings:
            crossing.cancel()
        await asyncio.gather(*self._crossings, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        crossing = asyncio.create_task(self._cross(reader, writer))
        self._crossings.add(crossing)
        crossing.add_done_callback(self._crossings.discard)

    async def _cross(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            await self._flowing.wait()
            self.passages += 1
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(self.host, self.target)
                self._ends.add(far_writer)
                try:
                    await self._both_ways(reader, writer, far_reader, far_writer)
                finally:
                    self._ends.discard(far_writer)
                    far_writer.transport.abort()
        finally:
            self._ends.discard(writer)
            writer.transport.abort()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        ways = [asyncio.create_task(_carry(reader, far_writer)), asyncio.create_task(_carry(far_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one end closes."""
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
