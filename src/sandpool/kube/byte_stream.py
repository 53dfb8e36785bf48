"""A bidirectional byte stream: an HTTP connection after a protocol switch."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, Self

_IN_FLIGHT: Final = 1 << 18  # bytes that one side of a pair may be ahead of the other


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
            # The peer has reset the connection. A StreamReader then refuses what it had received before, which may be
            # the end of an output and its exit code: kube-apiserver closes a connection as soon as it has sent them.
            received: bytearray = self.reader._buffer  # type: ignore[attr-defined]
            rest = bytes(received)
            received.clear()
            return rest

    async def send(self, data: bytes) -> None:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return

    async def close(self) -> None:
        self.writer.close()


class MemoryByteStream:
    """One end of a byte stream within a process."""

    def __init__(self, incoming: _Channel, outgoing: _Channel) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """The two ends of a new stream."""
        there, back = _Channel(), _Channel()
        return cls(back, there), cls(there, back)

    async def receive(self) -> bytes:
        return await self._incoming.get()

    async def send(self, data: bytes) -> None:
        await self._outgoing.put(data)

    async def close(self) -> None:
        self._outgoing.end()
        self._incoming.end()


class _Channel:
    """One direction of a pair, for one reader. ``put`` waits while the reader is ``_IN_FLIGHT`` bytes behind."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def get(self) -> bytes:
        while not self._pieces:
            if self._ended:
                return b""
            self._readable.clear()
            await self._readable.wait()
        piece = self._pieces.popleft()
        self._size -= len(piece)
        self._writable.set()
        return piece

    async def put(self, data: bytes) -> None:
        while self._size >= _IN_FLIGHT and not self._ended:
            self._writable.clear()
            await self._writable.wait()
        if data and not self._ended:
            self._pieces.append(data)
            self._size += len(data)
            self._readable.set()

    def end(self) -> None:
        """No more pieces are accepted; those that are there can still be read."""
        self._ended = True
        self._readable.set()
        self._writable.set()
