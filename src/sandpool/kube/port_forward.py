"""The client side of port forwarding: connections to ports of a pod over one SPDY session.

Each connection is a pair of streams with the same request ID. The server writes to the error stream if the port refuses
the connection; some servers end the whole session after that, and the next connection needs a new one.
"""

from __future__ import annotations

import asyncio
from typing import Self

from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.spdy_session import SpdySession, SpdyStream


class PortForward:
    """One session. Use it as a context manager; ``open`` tells whether it can still be used."""

    def __init__(self, byte_stream: ByteStream) -> None:
        self.byte_stream = byte_stream
        self._session = SpdySession(byte_stream)
        self._requests = 0
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._session.run(), name="port-forward")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.byte_stream.close()

    @property
    def open(self) -> bool:
        return self._running is not None and not self._running.done()

    async def connect(self, port: int) -> ForwardedConnection:
        """Open a connection to a port of the pod. A refusal is reported by the connection."""
        about = {"port": str(port), "requestid": str(self._requests)}
        self._requests += 1
        error = await self._session.open({**about, "streamtype": "error"})
        await error.close()  # the client never writes to it
        data = await self._session.open({**about, "streamtype": "data"})
        return ForwardedConnection(data, error)


class ForwardedConnection:
    """A connection to a port of a pod. ``refusal`` returns the reason of the server once the connection has ended."""

    def __init__(self, data: SpdyStream, error: SpdyStream) -> None:
        self._data = data
        self._error = error

    async def receive(self) -> bytes:
        return await self._data.receive()

    async def send(self, data: bytes) -> None:
        await self._data.send(data)

    async def end(self) -> None:
        """End the own half."""
        await self._data.close()

    async def reset(self) -> None:
        await self._data.reset()

    async def refusal(self) -> str:
        """The message of the server; empty if the connection ended as connections do."""
        pieces = []
        while piece := await self._error.receive():
            pieces.append(piece)
        return b"".join(pieces).decode(errors="replace")
