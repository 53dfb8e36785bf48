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
_KINDS: Final = frozenset({"data", "error"})
# Of one session: streams whose other half has not come, and connections. Of the first the oldest one is reset.
_MOST_HALVES: Final = 128
_MOST_CONNECTIONS: Final = 1024

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
            if (kind := stream.headers.get("streamtype", "")) not in _KINDS:
                await stream.reset()
                continue
            pair = pairs.setdefault(key, {})
            pair[kind] = stream
            if len(pairs) > _MOST_HALVES:
                for half in pairs.pop(next(iter(pairs))).values():
                    await half.reset()
            if pair.keys() == _KINDS:
                del pairs[key]
                refused = len(connections) >= _MOST_CONNECTIONS
                work = _refuse(pair["error"], pair["data"]) if refused else _connect(pair["data"], pair["error"], dial)
                task = asyncio.create_task(work)
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
    await error.close()  # also after a reset of the data


async def _refuse(error: SpdyStream, data: SpdyStream) -> None:
    await error.send(f"there are {_MOST_CONNECTIONS} connections already, which is the limit of a session".encode())
    await error.close()
    await data.reset()


async def _pump(stream: SpdyStream, sock: socket.socket) -> None:
    """Copy in both directions until the pod ends its half, or the client resets the stream or disconnects."""
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

    going_in, going_out = asyncio.create_task(inward()), asyncio.create_task(outward())
    try:
        await asyncio.wait((going_in, going_out), return_when=asyncio.FIRST_COMPLETED)
        if not stream.is_done:
            await going_out
    finally:
        for task in (going_in, going_out):
            task.cancel()
        await asyncio.gather(going_in, going_out, return_exceptions=True)
