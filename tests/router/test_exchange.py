"""One exchange after the other over the same connections, with sandboxes that say what each test wants."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sandpool.engine.clock import Clock, SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.dialer import connect
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import HEAD_TIMEOUT, IDLE_TIMEOUT, Router
from sandpool.router.targets import Target
from sandpool.testing.clock import ManualClock

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_LIMIT = 60.0

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Sandbox:
    """Runs the script of the test on every connection, and counts them. It is the only sandbox, ``box``."""

    def __init__(self, talk: Talk, clock: Clock) -> None:
        self.talk = talk
        self.connections = 0
        self.port = 0
        self.router = Router(self, self.dial, clock, RouterMetrics(MetricsRegistry()))

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def find(self, wanted: Destination) -> Target:
        if wanted.sandbox != "box":
            raise RequestRejected(404, f"Sandbox {wanted.sandbox} not found in namespace {wanted.namespace}.")
        return Target("default", "box", "uid", "10.231.0.9")

    async def dial(self, target: Target, port: int) -> socket.socket:
        return await connect("127.0.0.1", self.port)


class Client:
    """One connection to a router, with a small receive buffer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, router: Router) -> Client:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", router.ports[0]))
        return cls(*await asyncio.open_connection(sock=sock, limit=1 << 16))

    def ask(
        self,
        *lines: str,
        method: str = "GET",
        path: str = "/",
        box: str = "box",
        body: bytes = b"",
        version: str = "1.1",
    ) -> None:
        head = [f"{method} {path} HTTP/{version}", "Host: localhost", f"X-Sandbox-ID: {box}", *lines, "", ""]
        self.writer.write("\r\n".join(head).encode() + body)

    async def head(self) -> bytes:
        async with asyncio.timeout(_LIMIT):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def body(self, size: int) -> bytes:
        async with asyncio.timeout(_LIMIT):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Read until the end of the connection."""
        async with asyncio.timeout(_LIMIT):
            return await self.reader.read()


@asynccontextmanager
async def routed(talk: Talk, clock: Clock | None = None) -> AsyncIterator[tuple[Sandbox, Client]]:
    sandbox = Sandbox(talk, clock or SystemClock())
    server = await asyncio.start_server(sandbox.accept, "127.0.0.1", 0)
    sandbox.port = server.sockets[0].getsockname()[1]
    await sandbox.router.listen("127.0.0.1", 0)
    client = await Client.of(sandbox.router)
    try:
        yield sandbox, client
    finally:
        client.writer.transport.abort()
        await sandbox.router.stop(0)
        server.close()


# Received in one piece, and more than a connection to a client with a small window accepts at once: its writer is
# asked to wait when there is nothing more to write.
_PIECE = bytes(200_000)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(_PIECE), _PIECE)


async def test_upstream_connection_is_reused_while_the_last_client_reads_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(_ANSWER)

    async with routed(talk) as (sandbox, slow):
        router, answered = sandbox.router, asyncio.Event()
        monkeypatch.setattr(router.metrics, "answered", lambda *about: answered.set())
        (down,) = router.connections
        async with asyncio.timeout(_LIMIT):
            while down.transport.get_write_buffer_size() <= down.transport.get_write_buffer_limits()[1]:
                answered.clear()
                slow.ask()
                await answered.wait()
        other = await Client.of(router)
        other.ask()
        await other.head()
        assert await other.body(len(_PIECE)) == _PIECE
        assert sandbox.connections == 1
        other.writer.close()


async def test_slow_reader_stops_the_sandbox_for_every_kind_of_response() -> None:
    """Neither does it get into our memory."""
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /small"):
                writer.write(_ANSWER)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(500):
                writer.write(b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE))
                await writer.drain()
                sent += 1

    async with routed(talk) as (_, client):
        for _ in range(50):
            client.ask(path="/small")
        client.ask(path="/endless")
        stalled = 0
        async with asyncio.timeout(_LIMIT):
            while stalled < 20:
                before = sent
                await asyncio.sleep(0.02)
                stalled = stalled + 1 if sent == before else 0
        assert sent < 250, "the sandbox kept writing although the client does not read"


async def test_end_of_an_upgraded_connection_reaches_the_client() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\nhello")
        assert await reader.readexactly(3) == b"bye"

    async with routed(talk) as (_, client):
        client.ask("Connection: Upgrade", "Upgrade: chat")
        assert b" 101 " in await client.head()
        assert await client.body(5) == b"hello"
        client.writer.write(b"bye")
        assert await client.rest() == b""


async def test_unrequested_upgrade_is_rejected() -> None:
    """An accepted upgrade would forward all later bytes of the connection, including requests for other sandboxes."""
    heard = b""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n" + OK)
        heard += await reader.read()

    async with routed(talk) as (_, client):
        client.ask()
        client.ask("Authorization: Bearer secret", "Connection: close", box="another")
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 502 ") and answer.count(b"HTTP/1.1") == 1
    assert heard == b""


async def test_bytes_after_a_refused_upgrade_are_not_parsed_as_a_request() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.read()

    async with routed(talk) as (_, client):
        client.ask("Connection: Upgrade", "Upgrade: chat", body=b"first half, ")
        assert (await client.rest()).endswith(b"\r\n\r\nok")


@pytest.mark.parametrize(("path", "box", "status"), [("/", "other", b"404"), ("/healthz", "box", b"200")])
async def test_own_response_to_head_has_no_body(path: str, box: str, status: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async with routed(talk) as (_, client):
        client.ask(method="HEAD", path=path, box=box)
        assert (await client.head()).split()[1] == status
        client.ask("Connection: close")
        assert (await client.rest()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_request_with_a_body_is_not_retried_without_it() -> None:
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        head = await reader.readuntil(b"\r\n\r\n")
        heard.append(head + await reader.readexactly(4))  # and no answer

    async with routed(talk) as (sandbox, client):
        client.ask()
        await client.head()
        await client.body(2)
        client.ask("Content-Length: 4", "Connection: close", body=b"body")
        assert b" 502 " in await client.rest()
        assert sandbox.connections == 1
    assert len(heard) == 1


async def test_trailers_are_not_parsed_as_the_next_request() -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        assert await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(OK)
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)

    async with routed(talk) as (_, client):
        body = b"1\r\nx\r\n0\r\nX-Behind: it\r\n\r\n"
        client.ask("Transfer-Encoding: chunked", method="POST", body=body)
        await client.head()
        await client.body(2)
        client.ask("Connection: close")
        assert (await client.rest()).endswith(b"ok")
    assert not any(b"X-Behind" in head for head in heads)


async def test_connections_without_a_complete_request_are_closed_in_time() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/slow" in await reader.readuntil(b"\r\n\r\n"):
            asked.set()
            await enough.wait()
        writer.write(OK)

    clock, asked, enough = ManualClock(), asyncio.Event(), asyncio.Event()
    async with routed(talk, clock) as (sandbox, client):
        slow, quiet, idle = [await Client.of(sandbox.router) for _ in range(3)]
        for each in (client, idle):
            each.ask(path="/healthz")
            await each.head()
            await each.body(len(b'{"status":"ok"}'))
        slow.writer.write(b"GET / HTTP/1.1\r\nHost:")
        client.ask(path="/slow")
        await asked.wait()
        await clock.advance(HEAD_TIMEOUT + 5)
        assert (await slow.rest()).startswith(b"HTTP/1.1 408 "), "its head is incomplete"
        assert await quiet.rest() == b"", "it has never sent a request"
        assert len(sandbox.router.connections) == 2
        await clock.advance(IDLE_TIMEOUT)
        assert await idle.rest() == b""
        enough.set()
        assert await client.body(len(OK)) == OK, "a request in service is not idle"
        for each in (slow, quiet, idle):
            each.writer.close()


# --- who speaks HTTP/1.0 ----------------------------------------------------------------------------------------------

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n6\r\n of it\r\n"
_END = b"0\r\n\r\n"


def saying(*answers: bytes) -> Talk:
    """A sandbox that gives these answers to what it is asked over one connection, and ends it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    return talk


@pytest.mark.parametrize("answer", [_CHUNKED + _END, b"HTTP/1.0 200 OK\r\n\r\nall of it"])
@pytest.mark.parametrize("lines", [(), ("Connection: keep-alive",)])
async def test_http_1_0_client_gets_a_body_that_ends_with_the_connection(lines: tuple[str, ...], answer: bytes) -> None:
    async with routed(saying(answer)) as (_, client):
        client.ask(*lines, version="1.0")
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it"


async def test_http_1_0_client_may_request_keep_alive() -> None:
    async with routed(saying(OK, OK, _CHUNKED + _END)) as (_, client):
        client.ask("Connection: keep-alive", version="1.0")
        assert b"\r\nConnection: keep-alive\r\n" in await client.head()
        assert await client.body(2) == b"ok"
        client.ask("Connection: keep-alive", method="HEAD", path="/healthz", version="1.0")
        assert b"\r\nConnection: keep-alive\r\n" in await client.head()
        client.ask(version="1.0")
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


async def test_version_of_a_request_does_not_leak_into_the_next() -> None:
    async with routed(saying(_CHUNKED + _END, OK, _CHUNKED + _END)) as (_, client):
        client.ask("Connection: keep-alive")
        assert b"\r\nTransfer-Encoding: chunked\r\n" in await client.head()
        assert (await client.reader.readuntil(_END)).endswith(_END)
        client.ask("Connection: keep-alive", version="1.0")
        assert b"\r\nConnection: keep-alive\r\n" in await client.head()
        assert await client.body(2) == b"ok"
        client.ask("Connection: keep-alive")
        assert b"\r\nTransfer-Encoding: chunked\r\n" in await client.head()


async def test_aborted_body_without_a_length_does_not_look_complete() -> None:
    async with routed(saying(_CHUNKED)) as (_, client):
        client.ask(version="1.0")
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_chunked_request_of_http_1_0_closes_the_connection() -> None:
    async with routed(saying(OK)) as (_, client):
        lines = ("Connection: keep-alive", "Transfer-Encoding: chunked")
        client.ask(*lines, method="POST", body=b"1\r\nx\r\n" + _END, version="1.0")
        assert b"\r\nConnection: close\r\n" in await client.rest()


async def test_http_1_0_gets_neither_upgrade_nor_continue() -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)

    async with routed(talk) as (sandbox, client):
        client.ask("Connection: Upgrade", "Upgrade: chat", version="1.0")
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        other = await Client.of(sandbox.router)
        other.ask("Expect: 100-continue", "Content-Length: 4", method="POST", version="1.0", body=b"body")
        assert (await other.rest()).startswith(b"HTTP/1.1 200 OK\r\n")
        other.writer.close()
    assert b"upgrade" not in heads[0].lower()
