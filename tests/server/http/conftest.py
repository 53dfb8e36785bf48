"""A front with a scripted handler behind it and a raw socket before it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import orjson
import pytest
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec

from sandpool.kube.errors import Forbidden
from sandpool.server.auth.authenticator import Authenticator
from sandpool.server.auth.rbac import Decision
from sandpool.server.auth.service_accounts import ServiceAccountTokens
from sandpool.server.auth.tokens import StaticTokens
from sandpool.server.http import HttpLimits, HttpServer
from sandpool.server.request.messages import Response, ServerRequest, User


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Transports differ between event loops, so everything here runs on both that a server may run on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


TOKEN = "secret"
PATIENCE = 20.0  # seconds until a test that would hang fails instead


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return 1000.0 + self._passed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._passed + seconds, waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        self._passed += seconds
        for due, waiter in self._sleepers:
            if due <= self._passed and not waiter.done():
                waiter.set_result(None)


class ScriptedHandler:
    """Answers a path as the test says, and any other with a description of the request."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[ServerRequest], Awaitable[Response]]] = {}
        self.requests: list[ServerRequest] = []

    async def handle(self, request: ServerRequest) -> Response:
        self.requests.append(request)
        route = self.routes.get(request.path)
        if route is not None:
            return await route(request)
        return Response(
            object={
                "method": request.method,
                "path": request.path,
                "query": dict(request.query),
                "body": request.body.decode("latin-1"),
                "user": request.user.name,
            }
        )


class OnlyMasters:
    """Allows only members of system:masters."""

    def authorize(self, user: User, info: object) -> Decision:
        return Decision("system:masters" in user.groups)

    def require(self, user: User, info: object) -> None:
        if "system:masters" not in user.groups:
            raise Forbidden("forbidden")


class WireResponse:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class ByteStream:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def request(self, method: str = "GET", path: str = "/x", *headers: str, body: bytes = b"") -> None:
        """A well-formed request by an administrator."""
        lines = [f"{method} {path} HTTP/1.1", "Host: test", f"Authorization: Bearer {TOKEN}", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE):
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = text.strip().split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return int(status_line.split()[1]), headers

    async def answer(self, *, bodiless: bool = False) -> WireResponse:
        status, headers = await self.head()
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                body += chunk
        elif not bodiless:
            body = await self.exactly(int(headers.get("content-length", 0)))
        return WireResponse(status, headers, body)

    async def chunk(self) -> bytes:
        """The next chunk of a stream; empty at its end."""
        async with asyncio.timeout(PATIENCE):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self.exactly(size + 2))[:-2]

    async def exactly(self, length: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    def stop_reading(self) -> None:
        cast(asyncio.ReadTransport, self._writer.transport).pause_reading()

    def half_close(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()


class Bench:
    """A started front with everything around it."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.handler = ScriptedHandler()
        tokens = StaticTokens()
        tokens.add(TOKEN, User("admin", ("system:masters",)))
        tokens.add("bob-token", User("bob", ("dev",)))
        service_accounts = ServiceAccountTokens(ec.generate_private_key(ec.SECP256R1()), lambda *_: None)
        self.server = HttpServer(
            self.handler,
            Authenticator(tokens, service_accounts, clock=self.clock),
            authorizer=OnlyMasters(),
            clock=self.clock,
            **options,
        )
        self._wires: list[ByteStream] = []

    async def connect(self, tls: ssl.SSLContext | None = None) -> ByteStream:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.server.port,
            ssl=tls,
            server_hostname="localhost" if tls else None,
            limit=1 << 20,
        )
        wire = ByteStream(reader, writer)
        self._wires.append(wire)
        return wire

    async def settle(self) -> None:
        """Run all ready callbacks."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something the other side does on its own account; a turn of the event loop at a time."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - what is waited for knows nothing of being watched
                await asyncio.sleep(0.001)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.server.sweep()

    async def close(self) -> None:
        await self.server.stop(0)
        for wire in self._wires:
            await wire.close()


@pytest.fixture
async def make_bench() -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    benches: list[Bench] = []
    complaints: list[Any] = []  # of the event loop, about unhandled exceptions
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))

    async def make(**options: Any) -> Bench:
        bench = Bench(**options)
        await bench.server.start()
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        await bench.close()
    assert not complaints


@pytest.fixture
async def bench(make_bench: Callable[..., Awaitable[Bench]]) -> Bench:
    return await make_bench()


@pytest.fixture
def small_limits() -> HttpLimits:
    return HttpLimits(body=1000, head=2000, connections=4, write_buffer=1000, gzip_above=5000)
