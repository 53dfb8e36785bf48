from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest_asyncio

from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.dialer import connect
from sandpool.router.downstream import Downstream
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import Router
from sandpool.router.targets import Target
from sandpool.router.upstream import Upstream
from tests.support.garbage import freed_at_once

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Sandbox:
    """Answers a GET with its path; what is asked for ``/never`` never comes, and nothing more does after ``/ends``.
    ``heads`` are those it was sent."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                path = head.split()[1]
                if path != b"/never":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))
                if path == b"/ends":
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def find(self, wanted: Destination) -> Target:
        return Target(wanted.namespace, wanted.sandbox, wanted.sandbox, "10.231.0.9")

    async def dial(self, target: Target, port: int) -> socket.socket:
        return await connect("127.0.0.1", self.port)


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    sandbox = Sandbox()
    async with await asyncio.start_server(sandbox.serve, "127.0.0.1", 0) as server:
        sandbox.port = server.sockets[0].getsockname()[1]
        yield sandbox


@pytest_asyncio.fixture
async def router(sandbox: Sandbox) -> AsyncIterator[Router]:
    router = Router(sandbox, sandbox.dial, SystemClock(), RouterMetrics(MetricsRegistry()))
    await router.listen("127.0.0.1", 0)
    yield router
    await router.stop(0)


@pytest_asyncio.fixture
async def connection(router: Router) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
    yield reader, writer
    writer.close()


def get(path: str, *headers: str, sandbox: str = "box") -> bytes:
    return "\r\n".join(
        [f"GET {path} HTTP/1.1", "Host: localhost", f"X-Sandbox-ID: {sandbox}", *headers, "", ""]
    ).encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of the next one."""
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return int(head.split()[1]), await reader.readexactly(int(size.split(b":")[1]))


async def ask(connection: Connection, request: bytes) -> tuple[int, bytes]:
    reader, writer = connection
    writer.write(request)
    return await answer(reader)


async def test_thousands_of_pipelined_requests_are_answered_in_order(connection: Connection) -> None:
    reader, writer = connection
    writer.write(get("/healthz") * 3000 + get("/last"))
    assert {await answer(reader) for _ in range(3000)} == {(200, b'{"status":"ok"}')}
    assert await answer(reader) == (200, b"/last")


async def test_each_request_has_its_own_deadline(connection: Connection) -> None:
    assert await ask(connection, get("/one", "X-Sandbox-Timeout: 60")) == (200, b"/one")
    assert await ask(connection, get("/two", "X-Sandbox-Timeout: 0.1")) == (200, b"/two")
    began = asyncio.get_running_loop().time()
    assert (await ask(connection, get("/never", "X-Sandbox-Timeout: 0.5")))[0] == 504
    assert asyncio.get_running_loop().time() - began >= 0.5, "and not that of the one before"
    assert await ask(connection, get("/three")) == (200, b"/three")


async def test_cached_headers_do_not_leak_into_the_next_request(connection: Connection, sandbox: Sandbox) -> None:
    for box in ("one", "two", "two", "one"):
        assert await ask(connection, get("/", f"X-Mine: {box}", "Authorization: secret", sandbox=box)) == (200, b"/")
    marks = [next(line for line in head.split(b"\r\n") if line.startswith(b"X-Mine")) for head in sandbox.heads]
    assert marks == [b"X-Mine: one", b"X-Mine: two", b"X-Mine: two", b"X-Mine: one"]
    assert not any(b"secret" in head or b"sandbox" in head.lower() for head in sandbox.heads)
    assert (await ask(connection, get("/", sandbox="-")))[0] == 400
    assert (await ask(connection, get("/", sandbox="-")))[0] == 400


async def test_lost_connections_are_freed_without_the_garbage_collector(router: Router) -> None:
    async def use_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
        for path in ("/one", "/ends"):
            assert await ask((reader, writer), get(path)) == (200, path.encode())
        writer.close()
        await writer.wait_closed()

    await freed_at_once(use_one, Downstream, Upstream)


async def test_sandbox_that_the_router_does_not_know_yet_is_read_from_the_api(sandbox: Sandbox) -> None:
    """A client may see its claim become ready before the router does."""
    known: set[str] = set()
    refreshed: list[str] = []

    class Behind:
        def find(self, wanted: Destination) -> Target:
            if wanted.sandbox not in known:
                raise RequestRejected(404, "not found")
            return sandbox.find(wanted)

    async def refresh(wanted: Destination) -> bool:
        refreshed.append(wanted.sandbox)
        if wanted.sandbox == "box":
            known.add("box")
        return wanted.sandbox == "box"

    metrics = MetricsRegistry()
    router = Router(Behind(), sandbox.dial, SystemClock(), RouterMetrics(metrics), refresh=refresh)
    await router.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", router.ports[0])
    try:
        assert await ask((reader, writer), get("/one")) == (200, b"/one")
        assert await ask((reader, writer), get("/two")) == (200, b"/two")
        assert (await ask((reader, writer), get("/three", sandbox="none")))[0] == 404
        assert refreshed == ["box", "none"]
        text = (await metrics.render())[0].decode()
        assert 'sandbox_router_authz_decisions_total{decision="allow",sandbox_namespace="default"} 2.0' in text
        assert 'sandbox_router_authz_decisions_total{decision="allow",sandbox_namespace="-"} 1.0' in text
    finally:
        writer.close()
        await router.stop(0)
