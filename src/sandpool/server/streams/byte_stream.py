"""Bytes both ways: what is left of an HTTP connection after it was told to speak something else."""

from __future__ import annotations

import asyncio
from typing import Protocol


class ByteStream(Protocol):
    """``receive`` gives some bytes, or none at all when the other side has ended. ``send`` waits while the other side
    does not read. Sending to who is gone does nothing; ``receive`` tells."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class AsyncioByteStream:
    """Over a stream of asyncio."""

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
