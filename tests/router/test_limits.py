"""Bounds on what one client or one sandbox can make the router keep in memory."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import repeat

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.destination import Destination
from sandpool.router.dialer import connect
from sandpool.router.http1 import MAX_HEAD_BYTES
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import Router, RouterOptions
from sandpool.router.targets import Target
from sandpool.testing.clock import ManualClock

_LIMIT = 60.0
_PIECE = b"x" * 16_384
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "header lines": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000),
    "header value": (b"HTTP/1.1 200 OK\r\nX: ", _PIECE),
    "header name": (b"HTTP/1.1 200 OK\r\n", _PIECE),
    "reason phrase": (b"HTTP/1.1 200 ", _PIECE),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
    "empty lines": (b"", b"\r\n" * 5000),
}
ENDLESS_AFTER_HEAD: dict[str, tuple[bytes, bytes]] = {
    "trailers": (_CHUNKED + b"0\r\n", b"X: y\r\n" * 1000),
    "trailer value": (_CHUNKED + b"0\r\nX: ", _PIECE),
    "chunk size": (_CHUNKED, b"0" * 16_384),
    "chunk extension": (_CHUNKED + b"1;", _PIECE),
}


class Sandbox:
    """Writes ``first`` and then ``pieces`` until the router closes the connection."""

    def __init__(self, first: bytes = b"", pieces: Iterable[bytes] = ()) -> None:
        self.first = first
        self.pieces = pieces
        self.is_cut_off = asyncio.Event()
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.first)
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.is_cut_off.set()
            writer.close()

    def find(self, destination: Destination) -> Target:
        return Target("default", "box", "uid", "10.231.0.9")

    async def dial(self, target: Target, port: int) -> socket.socket:
        return await connect("127.0.0.1", self.port)


@asynccontextmanager
async def routed(
    sandbox: Sandbox, options: RouterOptions | None = None, clock: ManualClock | None = None
) -> AsyncIterator[Router]:
    metrics = RouterMetrics(MetricsRegistry())
    router = Router(sandbox, sandbox.dial, clock or SystemClock(), metrics, options=options)
    async with await asyncio.start_server(sandbox.talk, "127.0.0.1", 0) as server:
        sandbox.port = server.sockets[0].getsockname()[1]
        await router.listen("127.0.0.1", 0)
        try:
            yield router
        finally:
            await router.stop(0)


async def ask(router: Router, data: bytes) -> bytes:
    """Everything the router writes until it closes the connection."""
    async with asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
        writer.write(data)
        try:
            return await reader.read()
        finally:
            writer.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the router has no event for it
        await asyncio.sleep(0)


_GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\n\r\n"


@pytest.mark.parametrize(("first", "piece"), ENDLESS.values(), ids=ENDLESS)
async def test_endless_head_of_a_sandbox_is_answered_with_502(first: bytes, piece: bytes) -> None:
    sandbox = Sandbox(first, repeat(piece))
    async with routed(sandbox) as router:
        assert (await ask(router, _GET)).startswith(b"HTTP/1.1 502 ")
        await asyncio.wait_for(sandbox.is_cut_off.wait(), _LIMIT)


@pytest.mark.parametrize(("first", "piece"), ENDLESS_AFTER_HEAD.values(), ids=ENDLESS_AFTER_HEAD)
async def test_endless_framing_of_a_body_is_cut_off(first: bytes, piece: bytes) -> None:
    sandbox = Sandbox(first, repeat(piece))
    async with routed(sandbox) as router:
        answer = await ask(router, _GET)
        assert not answer.endswith(b"0\r\n\r\n"), "it does not look complete"
        await asyncio.wait_for(sandbox.is_cut_off.wait(), _LIMIT)


HEADS: dict[str, Callable[[], Iterator[bytes]]] = {
    "target": lambda: iter([b"GET /" + b"x" * (2 * MAX_HEAD_BYTES)]),
    "header value": lambda: iter([b"GET / HTTP/1.1\r\nX: ", *[_PIECE] * 5]),
    "header lines": lambda: iter([b"GET / HTTP/1.1\r\n", *[b"X: y\r\n" * 2000] * 10]),
    "method": lambda: iter([_PIECE] * 5),
}


@pytest.mark.parametrize("pieces", HEADS.values(), ids=HEADS)
async def test_endless_head_of_a_client_is_rejected(pieces: Callable[[], Iterator[bytes]]) -> None:
    async with routed(Sandbox()) as router, asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
        for piece in pieces():
            writer.write(piece)
        assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
        writer.transport.abort()


async def test_many_header_lines_are_rejected_at_their_end() -> None:
    async with routed(Sandbox()) as router:
        answer = await ask(router, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 129 + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert answer.count(b"HTTP/1.1") == 1, "the rejection is written once"


async def test_request_without_crlf_is_rejected_at_once() -> None:
    async with routed(Sandbox()) as router:
        for data in (b"GET / HTTP/1.1\n", b"GET /\0", b"\x16\x03\x01\x00\n"):
            assert (await ask(router, data)).startswith(b"HTTP/1.1 400 "), data


async def test_connections_from_one_address_are_limited() -> None:
    async with routed(Sandbox(), RouterOptions(max_connections_per_address=2)) as router, asyncio.timeout(_LIMIT):
        held = [await asyncio.open_connection("127.0.0.1", router.ports[0]) for _ in range(2)]
        await until(lambda: len(router.connections) == 2)
        assert b"Too many connections from 127.0.0.1." in await ask(router, b"")
        held[0][1].close()
        await until(lambda: len(router.connections) == 1)
        health = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
        assert (await ask(router, health)).startswith(b"HTTP/1.1 200 ")
        held[1][1].close()


async def test_idle_connections_make_room_in_a_full_router() -> None:
    clock = ManualClock()
    async with routed(Sandbox(), RouterOptions(max_connections=2), clock) as router, asyncio.timeout(_LIMIT):
        held = [await asyncio.open_connection("127.0.0.1", router.ports[0]) for _ in range(2)]
        await until(lambda: len(router.connections) == 2)
        assert b"Too many connections." in await ask(router, b""), "none has been idle for long"
        await clock.advance(2)
        health = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
        assert (await ask(router, health)).startswith(b"HTTP/1.1 200 ")
        for _, writer in held:
            writer.close()


async def test_connections_in_service_are_not_evicted() -> None:
    clock, sandbox = ManualClock(), Sandbox()
    release = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    sandbox.talk = talk  # type: ignore[method-assign]
    async with routed(sandbox, RouterOptions(max_connections=1), clock) as router, asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
        writer.write(_GET)
        await until(lambda: [each.idle_since for each in router.connections] == [None])
        await clock.advance(60)
        assert b"Too many connections." in await ask(router, b"")
        release.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize(
    "pieces",
    [(b"\r\n" + _GET,), (b"\r", b"\n" + _GET), (b"\r\n", _GET), (b"\r", b"\n", _GET), (b"\r", b"\n\r\n" + _GET)],
)
async def test_empty_line_before_a_request_may_come_in_pieces(pieces: tuple[bytes, ...]) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with routed(Sandbox(answer)) as router, asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
        try:
            for piece in pieces:
                writer.write(piece)
                for _ in range(20):  # the router reads this piece before the next is sent
                    await asyncio.sleep(0)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_client_that_takes_no_answers_is_not_read_and_then_dropped(request_: bytes) -> None:
    clock, most = ManualClock(), 16 << 20
    async with routed(Sandbox(), clock=clock) as router, asyncio.timeout(_LIMIT):
        with socket.create_connection(("127.0.0.1", router.ports[0])) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            client.setblocking(False)
            pieces, sent, waits = request_ * 1000, 0, 0
            while waits < 500 and sent < most:
                try:
                    sent += client.send(pieces[sent % len(request_) :])
                    waits = 0
                except BlockingIOError:
                    waits += 1
                await asyncio.sleep(0)
            (connection,) = router.connections
            assert sent < most, "the kernel keeps some megabytes"
            assert connection.transport.get_write_buffer_size() < 1 << 17
            for _ in range(10):
                await clock.advance(5)
            await until(lambda: not router.connections)


async def test_pipelined_requests_are_answered_in_order_however_many_there_are() -> None:
    async with routed(Sandbox()) as router, asyncio.timeout(_LIMIT):
        asked = [b"/healthz" if number % 3 else b"/" for number in range(5000)]
        requests = b"".join([b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target for target in asked])
        answers = await ask(router, requests + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        statuses = re.findall(rb"HTTP/1.1 ([0-9]+)", answers)
        assert statuses == [b"200" if target == b"/healthz" else b"400" for target in asked] + [b"200"]
