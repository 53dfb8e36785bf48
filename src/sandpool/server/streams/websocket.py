"""The server side of a WebSocket over a byte stream, on wsproto."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from sandpool.kube.byte_stream import ByteStream

NORMAL: Final = CloseReason.NORMAL_CLOSURE


def accept_headers(key: str, protocol: str) -> list[tuple[str, str]]:
    """Response headers that accept a WebSocket."""
    headers = [("Upgrade", "websocket"), ("Connection", "Upgrade")]
    headers.append(("Sec-WebSocket-Accept", generate_accept_token(key.encode()).decode()))
    if protocol:
        headers.append(("Sec-WebSocket-Protocol", protocol))
    return headers


class Piece(NamedTuple):
    """A part of a message, as it arrived."""

    data: bytes
    is_last: bool  # of its message


class WebSocket:
    """``receive`` returns messages in the parts in which they arrive, because they may have any length, and None at the
    end. Pings are answered while a receive is pending."""

    def __init__(self, byte_stream: ByteStream) -> None:
        self.byte_stream = byte_stream
        self._connection = Connection(ConnectionType.SERVER)
        self._pieces: deque[Piece] = deque()
        self._closed = False
        self._sending = asyncio.Lock()

    async def receive(self) -> Piece | None:
        while not self._pieces:
            if self._closed:
                return None
            data = await self.byte_stream.receive()
            try:
                self._connection.receive_data(data or None)
                for event in self._connection.events():
                    await self._take(event)
            except (RemoteProtocolError, LocalProtocolError):
                await self.close(CloseReason.PROTOCOL_ERROR)
        return self._pieces.popleft()

    async def send(self, data: bytes) -> None:
        await self._send(BytesMessage(data))

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        if not self._closed:
            await self._send(CloseConnection(code, reason))
            self._closed = True

    async def _send(self, event: Event) -> None:
        async with self._sending:
            if self._closed:
                return
            try:
                data = self._connection.send(event)
            except LocalProtocolError:  # the peer has closed
                self._closed = True
                return
            await self.byte_stream.send(data)

    async def _take(self, event: Event) -> None:
        if isinstance(event, Message):
            part = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
            self._pieces.append(Piece(part, event.message_finished))
        elif isinstance(event, Ping):
            await self._send(event.response())
        elif isinstance(event, CloseConnection):
            if event.code != CloseReason.ABNORMAL_CLOSURE:
                await self._send(event.response())
            self._closed = True


class WebSocketByteStream:
    """Binary messages as one byte stream. An empty message is not the end."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket

    async def receive(self) -> bytes:
        while True:
            piece = await self.socket.receive()
            if piece is None:
                return b""
            if piece.data:
                return piece.data

    async def send(self, data: bytes) -> None:
        await self.socket.send(data)

    async def close(self) -> None:
        await self.socket.close()
