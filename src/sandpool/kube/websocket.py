"""The client side of a WebSocket (RFC 6455) over a byte stream.

The API server uses wsproto. This module is for the commands of ``sandpool``: wsproto and its HTTP parser take 20 ms to
import, a fifth of the time that ``sandpool run`` may need, and a client needs only binary messages, pings and closing.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import Final

from sandpool.kube.byte_stream import ByteStream

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # fixed by RFC 6455, section 1.3
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FIN: Final = 0x80
_MASKED: Final = 0x80
_LONGEST: Final = 32 << 20  # of a message


class WebSocketError(ConnectionError):
    """The peer violated the protocol."""


def new_key() -> str:
    """A value for Sec-WebSocket-Key."""
    return base64.b64encode(os.urandom(16)).decode()


def accept_token(key: str) -> str:
    """Compute the Sec-WebSocket-Accept that answers the Sec-WebSocket-Key ``key`` (RFC 6455, section 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


class ClientWebSocket:
    """``receive`` returns whole messages, None at the end; ``send`` sends a binary message."""

    def __init__(self, byte_stream: ByteStream) -> None:
        self.byte_stream = byte_stream
        self._buffer = bytearray()
        self._parts: list[bytes] = []  # of the incomplete message
        self._size = 0
        self._closed = False

    async def receive(self) -> bytes | None:
        while not self._closed:
            while (frame := self._next_frame()) is None:
                data = await self.byte_stream.receive()
                if not data:
                    self._closed = True
                    return None
                self._buffer += data
            final, opcode, payload = frame
            if opcode in (_CONTINUATION, _TEXT, _BINARY):
                self._parts.append(payload)
                self._size += len(payload)
                if self._size > _LONGEST:
                    raise WebSocketError("a WebSocket message is too long")
                if final:
                    message = b"".join(self._parts)
                    self._parts, self._size = [], 0
                    return message
            elif opcode == _PING:
                await self._send(_PONG, payload)
            elif opcode == _CLOSE:
                await self._send(_CLOSE, payload[:2])
                self._closed = True
        return None

    async def send(self, data: bytes) -> None:
        if not self._closed:
            await self._send(_BINARY, data)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._send(_CLOSE, struct.pack(">H", 1000))

    async def _send(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = struct.pack(">BB", _FIN | opcode, _MASKED | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", _FIN | opcode, _MASKED | 126, size)
        else:
            head = struct.pack(">BBQ", _FIN | opcode, _MASKED | 127, size)
        key = os.urandom(4)
        await self.byte_stream.send(head + key + _masked(payload, key))

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if first & 0x70 or second & _MASKED:
            raise WebSocketError("the server sent a WebSocket frame that is not allowed")
        size, offset = second & 0x7F, 2
        if size >= 126:
            layout = ">H" if size == 126 else ">Q"
            offset += struct.calcsize(layout)
            if len(buffer) < offset:
                return None
            size = struct.unpack_from(layout, buffer, 2)[0]
        if size > _LONGEST:
            raise WebSocketError("a WebSocket frame is too long")
        if len(buffer) < offset + size:
            return None
        payload = bytes(buffer[offset : offset + size])
        del buffer[: offset + size]
        return bool(first & _FIN), first & 0x0F, payload


def _masked(payload: bytes, key: bytes) -> bytes:
    size = len(payload)
    pad = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")


class WebSocketBytes:
    """The binary messages of a WebSocket as one byte stream, for a protocol that is tunnelled through it."""

    def __init__(self, socket: ClientWebSocket) -> None:
        self.socket = socket

    async def receive(self) -> bytes:
        while (message := await self.socket.receive()) is not None:
            if message:  # an empty message is not the end
                return message
        return b""

    async def send(self, data: bytes) -> None:
        await self.socket.send(data)

    async def close(self) -> None:
        await self.socket.close()
        await self.socket.byte_stream.close()
