"""Port forwarding: many connections to ports of a pod over one SPDY session, as in ``kubectl port-forward``.

For every connection the client opens a pair of streams with the same request ID, one for data and one for errors. Some
clients close the whole session after a message on the error stream, so the server sends one only if a port refuses the
connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sandpool.kube.pod_access import PodAccessError
from sandpool.kube.spdy_session import SpdySession, SpdyStream

PROTOCOL: Final = "portforward.k8s.io"
TUNNEL: Final = f"SPDY/3.1+{PROTOCOL}"

_PIECE: Final = 1 << 16

#: Returns a connected, non-blocking socket to a port. Raises ``OSError`` or ``PodAccessError``.
Dial = Callable[[int], Awaitable[socket.socket]]


async def forward(session: SpdySession, dial: Dial) -> None:
    """Serve connections until the client disconnects."""
    pairs: dict[str, dict[str, SpdyStream]] = {}
    connections: set[asyncio.Task[None]] = set()
    running = asyncio.create_task(session.run(), name="SPDY session")
    try:
        while (stream := await session.opened.get()) is not None:
            # Clients without request IDs open the two streams one after the other.
            key = stream.headers.get("requestid") or f"#{(stream.id - 1) // 4}"
            pair = pairs.setdefault(key, {})
            pair[stream.headers.get("streamtype", "")] = stream
            if pair.keys() >= {"data", "error"}:
                del pairs[key]
                task = asyncio.create_task(_connect(pair["data"], pair["error"], dial))
                connections.add(task)
                task.add_done_callback(connections.discard)
    finally:
        running.cancel()
        for task in connections:
            task.cancel()
        await asyncio.gather(running, *connections, return_exceptions=True)


async def _connect(data: SpdyStream, error: SpdyStream, dial: Dial) -> None:
    text = data.headers.get("port", "")
    try:
        port = int(text)
        sock = await dial(port)
    except (OSError, ValueError, PodAccessError) as problem:
        why = "nothing listens on it" if isinstance(problem, ConnectionRefusedError) else problem
        await error.send(f"an error occurred forwarding port {text}: {why}".encode())
        await error.close()
        await data.reset()
        return
    with sock:
        await _pump(data, sock)
    await data.close()
    await error.close()


async def _pump(stream: SpdyStream, sock: socket.socket) -> None:
    """Copy in both directions until the pod ends its half or the client disconnects."""
    loop = asyncio.get_running_loop()

    async def inward() -> None:
        with suppress(OSError):
            while data := await stream.receive():
                await loop.sock_sendall(sock, data)
            sock.shutdown(socket.SHUT_WR)

    async def outward() -> None:
        with suppress(OSError):
            while data := await loop.sock_recv(sock, _PIECE):
                await stream.send(data)

    going_in = asyncio.create_task(inward())
    try:
        await outward()
    finally:
        going_in.cancel()
        await asyncio.gather(going_in, return_exceptions=True)
