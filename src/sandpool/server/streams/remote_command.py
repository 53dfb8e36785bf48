"""A command and its client, over a WebSocket or over SPDY: the protocols of ``kubectl exec`` and ``attach``.

Over a WebSocket every message begins with the number of a channel. Over SPDY the channels are streams, which the client
opens and names. Both end with a Status object that holds the exit code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from sandpool.api.resource import Object
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_access import PodAccessError, Size, StreamClient
from sandpool.server.streams.options import StdStreams
from sandpool.server.streams.spdy_session import SpdySession, SpdyStream
from sandpool.server.streams.websocket import WebSocket

#: In the order of preference.
WEBSOCKET_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SPDY_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_LARGEST: Final = 0xFFFF  # columns or rows of a terminal, as the kernel has them
_PATIENCE: Final = 30.0  # seconds a client has to open its streams

#: Does the work and gives the exit code.
Work = Callable[[StreamClient], Awaitable[int]]


class _Client:
    """What is common to both: what was typed and the sizes wait here until they are read."""

    def __init__(self, streams: StdStreams) -> None:
        self.has_stdin = streams.stdin
        self.has_stdout = streams.stdout
        self.has_stderr = streams.stderr and not streams.terminal
        self.is_terminal = streams.terminal
        self._typed: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)
        self._sizes: asyncio.Queue[Size | None] = asyncio.Queue()
        self._at_end = not streams.stdin

    async def receive(self) -> bytes:
        if self._at_end:
            return b""
        data = await self._typed.get()
        self._at_end = not data
        return data

    async def next_size(self) -> Size | None:
        return await self._sizes.get()

    def resized(self, message: bytes) -> None:
        try:
            size = orjson.loads(message)
            columns, rows = int(size["Width"]), int(size["Height"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        # Nobody asks for sizes where there is no terminal, and they would be kept.
        if self.is_terminal and max(columns, rows) <= _LARGEST and min(columns, rows) >= 0:
            self._sizes.put_nowait(Size(columns, rows))


class WebSocketClient(_Client):
    def __init__(self, socket: WebSocket, streams: StdStreams) -> None:
        super().__init__(streams)
        self.socket = socket

    async def listen(self) -> None:
        """Until the client goes."""
        while (message := await self.socket.receive()) is not None:
            match message[:1]:
                case b"\x00" if message[1:] and self.has_stdin:
                    await self._typed.put(message[1:])
                case b"\x04":
                    self.resized(message[1:])
                case b"\xff" if message[1:2] == b"\x00":
                    await self._typed.put(b"")
        self._sizes.put_nowait(None)

    async def write(self, data: bytes, *, error: bool = False) -> None:
        if self.has_stderr if error else self.has_stdout:
            await self.socket.send(bytes([_STDERR if error else _STDOUT]) + data)

    async def end(self, status: Object) -> None:
        await self.socket.send(bytes([_STATUS]) + orjson.dumps(status))
        await self.socket.close()


class SpdyClient(_Client):
    def __init__(self, streams: dict[str, SpdyStream], *, terminal: bool) -> None:
        super().__init__(StdStreams("stdin" in streams, "stdout" in streams, "stderr" in streams, terminal))
        self.streams = streams

    async def listen(self, session: SpdySession) -> None:
        """Until the client goes."""
        async with asyncio.TaskGroup() as group:
            if "stdin" in self.streams:
                group.create_task(self._type())
            if "resize" in self.streams:
                group.create_task(self._resize())
            while await session.opened.get() is not None:
                pass
        self._sizes.put_nowait(None)

    async def write(self, data: bytes, *, error: bool = False) -> None:
        stream = self.streams.get("stderr" if error else "stdout")
        if stream is not None:
            await stream.send(data)

    async def end(self, status: Object) -> None:
        await self.streams["error"].send(orjson.dumps(status))
        for stream in self.streams.values():
            await stream.close()

    async def _type(self) -> None:
        while data := await self.streams["stdin"].receive():
            await self._typed.put(data)
        await self._typed.put(b"")

    async def _resize(self) -> None:
        while message := await self.streams["resize"].receive():
            for line in message.splitlines():
                self.resized(line)


async def over_websocket(socket: WebSocket, work: Work, streams: StdStreams) -> None:
    client = WebSocketClient(socket, streams)
    await _converse(client, client.listen(), work)


async def over_spdy(session: SpdySession, work: Work, streams: StdStreams) -> None:
    wanted = {"error", *(name for name in ("stdin", "stdout", "stderr") if getattr(streams, name))}
    if streams.terminal:
        wanted = wanted - {"stderr"} | {"resize"}
    running = asyncio.create_task(session.run(), name="SPDY session")
    try:
        opened = await _opened(session, wanted)
        if opened is not None:
            client = SpdyClient(opened, terminal=streams.terminal)
            await _converse(client, client.listen(session), work)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _opened(session: SpdySession, wanted: set[str]) -> dict[str, SpdyStream] | None:
    """The streams of the client by name; None if it does not open them all."""
    found: dict[str, SpdyStream] = {}
    try:
        async with asyncio.timeout(_PATIENCE):
            while wanted - found.keys():
                stream = await session.opened.get()
                if stream is None:
                    return None
                found[stream.headers.get("streamtype", "")] = stream
    except TimeoutError:
        return None
    return found


async def _converse(client: WebSocketClient | SpdyClient, listening: Awaitable[None], work: Work) -> None:
    """Until the work is done or the client is gone, whichever is first; nobody works for who is gone."""
    doing = asyncio.ensure_future(work(client))
    hearing = asyncio.ensure_future(listening)
    try:
        await asyncio.wait((doing, hearing), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await client.end(_status(doing))
    finally:
        for task in (doing, hearing):
            task.cancel()
        await asyncio.gather(doing, hearing, return_exceptions=True)


def _status(done: asyncio.Future[int]) -> Object:
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    error = done.exception()
    if error is None:
        code = done.result()
        if code == 0:
            return {**status, "status": "Success"}
        return {
            **status,
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    if isinstance(error, ApiError):
        return error.status()
    message = str(error) if isinstance(error, PodAccessError) else f"internal error: {error!r}"
    return {**status, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
