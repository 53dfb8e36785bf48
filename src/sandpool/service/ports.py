"""Ports of sandboxes: a local listener whose connections end at a port inside.

All connections share one port-forward. If it breaks, or the server ends it after a refused connection, the next
connection opens a new one.

A connection that the sandbox refuses is closed. A client of ``Ports.forward`` that has sent a request of HTTP first
gets the reason as an answer with status 502, as from the router. Otherwise a program that fetches a URL would only
learn that the connection was closed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.errors import ApiError, BadRequest, NotFound, ServiceUnavailable
from sandpool.kube.pod_client import PodClient
from sandpool.kube.port_forward import ForwardedConnection, PortForward
from sandpool.service.errors import ServiceError
from sandpool.service.sandboxes import Sandbox, Wake, not_running

_PIECE: Final = 1 << 16
_REQUEST_LINE: Final = re.compile(rb"[A-Z]+ [^ \r\n]+ HTTP/1\.[01]\r?\n")
#: Seconds in which a refused client has to send its request, and afterwards to read the answer.
_TIMEOUT: Final = 2.0


class PortInUse(ServiceError):
    """The local port cannot be listened on."""


class Ports:
    """Forwards local ports to sandboxes."""

    def __init__(self, pods: PodClient, wake: Wake | None = None) -> None:
        self.pods = pods
        self.wake = wake

    @asynccontextmanager
    async def forward(
        self,
        sandbox: Sandbox,
        port: int,
        *,
        local_port: int = 0,
        host: str = "127.0.0.1",
        problem: Callable[[str], None] = lambda message: None,
    ) -> AsyncIterator[int]:
        """Listen on a local port, by default a free one, for the length of the block; yields its number.

        ``problem`` receives one line for each connection that the sandbox refuses, which says what to do."""
        async with AsyncExitStack() as stack:
            forwarder = await stack.enter_async_context(
                _Forwarder(self.pods, sandbox, port, self.wake, problem, answers=True)
            )
            try:
                server = await asyncio.start_server(forwarder.accept, host, local_port)
            except OSError as error:
                raise PortInUse(
                    f"cannot listen on {host}:{local_port}: {error.strerror}", "Choose another local port."
                ) from None
            stack.callback(server.close)
            yield server.sockets[0].getsockname()[1]

    @asynccontextmanager
    async def forward_to_socket(self, sandbox: Sandbox, port: int, path: Path) -> AsyncIterator[None]:
        """Listen at a Unix socket, for the length of the block. Who may enter its directory may connect."""
        async with AsyncExitStack() as stack:
            forwarder = await stack.enter_async_context(
                _Forwarder(self.pods, sandbox, port, self.wake, lambda message: None, answers=False)
            )
            server = await asyncio.start_unix_server(forwarder.accept, path)
            stack.callback(server.close)
            yield


class _Forwarder:
    def __init__(
        self,
        pods: PodClient,
        sandbox: Sandbox,
        port: int,
        wake: Wake | None,
        problem: Callable[[str], None],
        *,
        answers: bool,
    ) -> None:
        self.wake = wake
        self.answers = answers
        self.pods = pods
        self.sandbox = sandbox
        self.port = port
        self.problem = problem
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._session: PortForward | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> _Forwarder:
        await self._current()  # a sandbox that does not run is an error now, not at the first connection
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._stack.aclose()

    async def _current(self) -> PortForward:
        async with self._opening:
            if self._session is None or not self._session.open:
                await self._stack.aclose()
                try:
                    tunnel = await self._tunnel()
                except (NotFound, ServiceUnavailable, BadRequest) as error:
                    raise not_running(self.sandbox, error) from error
                self._session = await self._stack.enter_async_context(PortForward(tunnel))
            return self._session

    async def _tunnel(self) -> ByteStream:
        sandbox = self.sandbox
        try:
            return await self.pods.tunnel(sandbox.namespace, sandbox.pod)
        except NotFound:
            if self.wake is None or not sandbox.asleep:
                raise
        await self.wake(sandbox.namespace, sandbox.name)
        return await self.pods.tunnel(sandbox.namespace, sandbox.pod)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio reports the cancellation of a task that it made itself as an error.
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(reader, writer)
        try:
            session = await self._current()
            why = await _relay(await session.connect(self.port), client)
        except ServiceError as error:
            why = f"{error.message}. {error.advice}".rstrip()
        except (ApiError, OSError) as error:
            why = str(error)
        else:
            if not why:
                return
            why += f". A server in {self.sandbox.name} has to listen on port {self.port} of 0.0.0.0"
        self.problem(" ".join(why.split()))
        if self.answers:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT):
                    await client.refuse(why)


class _Client:
    """The local end of a connection. Remembers what decides whether an answer of HTTP can be given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._first = b""
        self._answered = False

    async def receive(self) -> bytes:
        data = await self.reader.read(_PIECE)
        self._first = self._first or data
        return data

    async def send(self, data: bytes) -> None:
        self._answered = True
        self.writer.write(data)
        await self.writer.drain()

    async def refuse(self, why: str) -> None:
        """Answer a request of HTTP that has no answer yet."""
        if self._answered or not _REQUEST_LINE.match(self._first or await self.receive()):
            return
        text = f"{why}\n".encode()
        head = f"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n"
        await self.send(f"{head}Connection: close\r\n\r\n".encode() + text)
        self.writer.write_eof()
        # Closing with unread data would reset the connection, and the client might lose the answer.
        while await self.receive():
            pass


async def _relay(connection: ForwardedConnection, client: _Client) -> str:
    """Copy in both directions until the sandbox ends its half; returns why it refused the connection, if it did."""

    async def inward() -> None:
        with suppress(OSError):
            while data := await client.receive():
                await connection.send(data)
            await connection.end()

    going_in = asyncio.create_task(inward())
    try:
        with suppress(OSError):
            while data := await connection.receive():
                await client.send(data)
        return await connection.refusal()
    finally:
        going_in.cancel()
        await asyncio.gather(going_in, return_exceptions=True)
        await connection.reset()
