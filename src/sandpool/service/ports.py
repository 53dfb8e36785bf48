"""Ports of sandboxes: a local listener whose connections end at a port inside.

All connections share one port-forward. If it breaks, or the server ends it after a refused connection, the next
connection opens a new one.
"""

from __future__ import annotations

import asyncio
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

        ``problem`` receives one line for each connection that the sandbox refuses."""
        async with AsyncExitStack() as stack:
            forwarder = await stack.enter_async_context(_Forwarder(self.pods, sandbox, port, problem, self.wake))
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
                _Forwarder(self.pods, sandbox, port, lambda message: None, self.wake)
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
        problem: Callable[[str], None],
        wake: Wake | None,
    ) -> None:
        self.wake = wake
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
        try:
            session = await self._current()
            await self._relay(await session.connect(self.port), reader, writer)
        except (ServiceError, ApiError, OSError) as error:
            self.problem(str(error).splitlines()[0])

    async def _relay(
        self, connection: ForwardedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async def inward() -> None:
            with suppress(OSError):
                while data := await reader.read(_PIECE):
                    await connection.send(data)
                await connection.end()

        going_in = asyncio.create_task(inward())
        try:
            with suppress(OSError):
                while data := await connection.receive():
                    writer.write(data)
                    await writer.drain()
            if refusal := await connection.refusal():
                self.problem(refusal)
        finally:
            going_in.cancel()
            await asyncio.gather(going_in, return_exceptions=True)
            await connection.reset()
