"""Streams over one SPDY connection: the client opens them, both sides send, each side ends its half.

The same session serves both sides: a server reads the new streams from ``opened``, a client calls ``open``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from sandpool.kube import spdy
from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.spdy import Control, Data, Decoder, Encoder, SpdyError

# Unread bytes of all streams above which the connection is not read. One unread stream blocks the others: Kubernetes
# uses SPDY without window updates.
_UNREAD_BYTES: Final = 1 << 20
# Streams that the peer has open, and the bytes of their headers; further ones are reset. Headers are compressed, so a
# peer could otherwise make megabytes of a kilobyte.
MOST_STREAMS: Final = 2048
_HEADER_BYTES: Final = 1 << 18
_PIECE: Final = 1 << 15


class SpdyStream:
    """``receive`` returns bytes, empty at the end. ``close`` ends the own half; a reset ends both."""

    def __init__(self, session: SpdySession, stream_id: int, headers: Mapping[str, str]) -> None:
        self.id = stream_id
        self.headers = headers
        self._session = session
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = False  # by the peer
        self._closed = False  # by this side
        self._changed = asyncio.Event()

    async def receive(self) -> bytes:
        while not self._pieces:
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = b"".join(self._pieces)
        self._drop()
        return data

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            if not self._closed:
                await self._session.send(Data(self.id, data[start : start + _PIECE]))

    async def close(self) -> None:
        """End the own half. Data from the peer can still be received."""
        if not self._closed:
            self._closed = True
            await self._session.send(Data(self.id, b"", fin=True))
            self._session.forget_if_done(self)

    async def reset(self) -> None:
        self.abandon()
        await self._session.send(Control(spdy.RST_STREAM, self.id, number=spdy.CANCEL))
        self._session.forget_if_done(self)

    @property
    def is_done(self) -> bool:
        return self._ended and self._closed

    def take(self, data: bytes, fin: bool) -> None:
        if self._ended:
            return
        if data:
            self._pieces.append(data)
            self._size += len(data)
            self._session.unread(len(data))
        self._ended = fin
        self._changed.set()

    def cut(self) -> None:
        """End both halves without sending anything. What has arrived can still be received."""
        self._ended = self._closed = True
        self._changed.set()

    def abandon(self) -> None:
        """End both halves without sending anything, and drop what was not received."""
        self.cut()
        self._drop()

    def _drop(self) -> None:
        self._session.unread(-self._size)
        self._pieces.clear()
        self._size = 0


class SpdySession:
    """``run`` reads until the connection ends; new streams are queued in ``opened``, then None."""

    def __init__(self, byte_stream: ByteStream) -> None:
        self.byte_stream = byte_stream
        self.opened: asyncio.Queue[SpdyStream | None] = asyncio.Queue()
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._streams: dict[int, SpdyStream] = {}
        self._sending = asyncio.Lock()
        self._last_id = -1  # of the streams opened by this side
        self._headers = 0  # bytes of the headers of all streams
        self._unread = 0  # bytes in all streams
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def open(self, headers: Mapping[str, str]) -> SpdyStream:
        """Open a stream, as a client."""
        self._last_id += 2
        stream = self._add(self._last_id, headers)
        await self.send(Control(spdy.SYN_STREAM, stream.id, headers=headers))
        return stream

    def unread(self, change: int) -> None:
        """Count bytes that a stream has taken in, or given out."""
        self._unread += change
        if self._unread > _UNREAD_BYTES:
            self._has_room.clear()
        else:
            self._has_room.set()

    async def run(self) -> None:
        try:
            while data := await self.byte_stream.receive():
                for frame in self._decoder.feed(data):
                    await self._take(frame)
                    await self._has_room.wait()
        except SpdyError:
            await self.send(Control(spdy.GOAWAY, 0, number=spdy.PROTOCOL_ERROR))
        finally:
            for stream in self._streams.values():
                stream.cut()
            self._streams.clear()
            self.opened.put_nowait(None)

    async def send(self, frame: Control | Data) -> None:
        async with self._sending:  # headers are compressed in the order in which they are sent
            encoded = self._encoder.data(frame) if isinstance(frame, Data) else self._encoder.control(frame)
            await self.byte_stream.send(encoded)

    def forget_if_done(self, stream: SpdyStream) -> None:
        if stream.is_done:
            self._remove(stream.id)

    def _add(self, stream_id: int, headers: Mapping[str, str]) -> SpdyStream:
        stream = self._streams[stream_id] = SpdyStream(self, stream_id, headers)
        self._headers += _size(headers)
        return stream

    def _remove(self, stream_id: int) -> SpdyStream | None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._headers -= _size(stream.headers)
        return stream

    async def _take(self, frame: Control | Data) -> None:
        if isinstance(frame, Data):
            stream = self._streams.get(frame.stream)
            if stream is not None:
                stream.take(frame.data, frame.fin)
                self.forget_if_done(stream)
            return
        match frame.kind:
            case 1:
                await self._open(frame)
            case 3:
                if (stream := self._remove(frame.stream)) is not None:
                    stream.abandon()
            case 6:
                await self.send(frame)

    async def _open(self, frame: Control) -> None:
        if frame.stream % 2 == 0 or frame.stream in self._streams:
            raise SpdyError(f"stream {frame.stream} cannot be opened")
        if len(self._streams) >= MOST_STREAMS or self._headers + _size(frame.headers) > _HEADER_BYTES:
            await self.send(Control(spdy.RST_STREAM, frame.stream, number=spdy.REFUSED_STREAM))
            return
        stream = self._add(frame.stream, frame.headers)
        await self.send(Control(spdy.SYN_REPLY, frame.stream))
        if frame.fin:
            stream.take(b"", fin=True)
        self.opened.put_nowait(stream)


def _size(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in headers.items())
