"""A bidirectional byte stream: an HTTP connection after a protocol switch."""

from __future__ import annotations

import asyncio
from typing import Protocol


class ByteStream(Protocol):
    """``receive`` returns bytes, empty at the end. ``send`` waits while the peer does not read. Sending to a
    disconnected peer does nothing; ``receive`` reports the end."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class AsyncioByteStream:
    """A byte stream over asyncio streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def receive(self) -> bytes:
        try:
            return await self.reader.read(1 << 16)
        except OSError:
            return b""

    async def send(self, data: bytes) -> None:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return

    async def close(self) -> None:
        self.writer.close()
