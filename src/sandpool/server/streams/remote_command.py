"""The remote command protocols of ``kubectl exec`` and ``attach``, over WebSocket and SPDY.

A WebSocket message begins with a channel number. Over SPDY the channels are streams that the client opens and names.
Both protocols end with a Status that holds the exit code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from wsproto.frame_protocol import CloseReason

from sandpool.api.resource import Object
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_access import PodAccessError, Size, StreamClient
from sandpool.kube.spdy_session import SpdySession, SpdyStream
from sandpool.server.streams.options import StdStreams
from sandpool.server.streams.websocket import WebSocket

#: In order of preference.
WEBSOCKET_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SPDY_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_LARGEST: Final = 0xFFFF  # columns or rows of a terminal, as the kernel has them
_OPEN_SECONDS: Final = 30.0  # for a client to open its streams

# Standard input that the command has not taken: pieces, and bytes before the last of them.
_WAITING_PIECES: Final = 64
_WAITING_BYTES: Final = 1 << 20
# Of a message that is no standard input: a size, or the end of a stream.
_LONGEST: Final = 1 << 12

#: Runs the command and returns its exit code.
Work = Callable[[StreamClient], Awaitable[int]]


class _Client:
    """Common part of both protocols: queues for standard input and terminal sizes."""

    def __init__(self, streams: StdStreams) -> None:
        self.has_stdin = streams.stdin
        self.has_stdout = streams.stdout
        self.has_stderr = streams.stderr and not streams.terminal
        self.is_terminal = streams.terminal
        self._stdin_queue = _Input()
        self._size_queue: asyncio.Queue[Size | None] = asyncio.Queue()
        self._at_end = not streams.stdin

    async def receive(self) -> bytes:
        if self._at_end:
            return b""
        data = await self._stdin_queue.get()
        self._at_end = not data
        return data

    async def next_size(self) -> Size | None:
        return await self._size_queue.get()

    def resized(self, message: bytes) -> None:
        try:
            size = orjson.loads(message)
            columns, rows = int(size["Width"]), int(size["Height"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        # Without a terminal sizes are never read and would accumulate.
        if self.is_terminal and max(columns, rows) <= _LARGEST and min(columns, rows) >= 0:
            while not self._size_queue.empty():
                self._size_queue.get_nowait()  # only the last size matters
            self._size_queue.put_nowait(Size(columns, rows))


class _Input:
    """Standard input on its way to the command. ``put`` waits while the command does not read."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(_WAITING_PIECES)
        self._size = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def put(self, piece: bytes) -> None:
        await self._has_room.wait()
        self._count(len(piece))
        await self._pieces.put(piece)

    async def get(self) -> bytes:
        piece = await self._pieces.get()
        self._count(-len(piece))
        return piece

    def _count(self, change: int) -> None:
        self._size += change
        if self._size >= _WAITING_BYTES:
            self._has_room.clear()
        else:
            self._has_room.set()


class WebSocketClient(_Client):
    def __init__(self, socket: WebSocket, streams: StdStreams) -> None:
        super().__init__(streams)
        self.socket = socket

    async def listen(self) -> None:
        """Read from the client until it disconnects. Standard input is passed on as it arrives: a message may be
        long."""
        message = b""  # the part of the present one that has arrived; of standard input only its channel
        while (piece := await self.socket.receive()) is not None:
            message += piece.data
            if message[:1] == b"\x00":
                if message[1:] and self.has_stdin:
                    await self._stdin_queue.put(message[1:])
                message = message[:1]
            if len(message) > _LONGEST:
                await self.socket.close(CloseReason.MESSAGE_TOO_BIG)
            elif piece.is_last:
                await self._received(message)
                message = b""
        self._size_queue.put_nowait(None)

    async def _received(self, message: bytes) -> None:
        match message[:1]:
            case b"\x04":
                self.resized(message[1:])
            case b"\xff" if message[1:2] == b"\x00":
                await self._stdin_queue.put(b"")

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
        """Read from the client until it disconnects."""
        async with asyncio.TaskGroup() as group:
            if "stdin" in self.streams:
                group.create_task(self._read_stdin())
            if "resize" in self.streams:
                group.create_task(self._resize())
            while await session.opened.get() is not None:
                pass
        self._size_queue.put_nowait(None)

    async def write(self, data: bytes, *, error: bool = False) -> None:
        stream = self.streams.get("stderr" if error else "stdout")
        if stream is not None:
            await stream.send(data)

    async def end(self, status: Object) -> None:
        await self.streams["error"].send(orjson.dumps(status))
        for stream in self.streams.values():
            await stream.close()

    async def _read_stdin(self) -> None:
        while data := await self.streams["stdin"].receive():
            await self._stdin_queue.put(data)
        await self._stdin_queue.put(b"")

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
    """The client's streams by name; None if it does not open all of them."""
    found: dict[str, SpdyStream] = {}
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            while wanted - found.keys():
                stream = await session.opened.get()
                if stream is None:
                    return None
                if (name := stream.headers.get("streamtype", "")) in wanted:
                    found[name] = stream
    except TimeoutError:
        return None
    return found


async def _converse(client: WebSocketClient | SpdyClient, listening: Awaitable[None], work: Work) -> None:
    """Run the command until it ends or the client disconnects, which cancels it."""
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
