"""Connections of our own, against a server that says exactly what each test wants, byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sandpool.kube import connection_pool
from sandpool.kube.connection_pool import ConnectionPool, HttpResponse
from sandpool.kube.request_encoder import RequestEncoder
from sandpool.kube.transport import Request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Runs the script of the test on every connection, and counts the connections."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.connections = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def talking(talk: Talk, *, limit: int = 10) -> AsyncIterator[tuple[ConnectionPool, Server]]:
    server = Server(talk)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    pool = ConnectionPool("127.0.0.1", listening.sockets[0].getsockname()[1], limit=limit, connect_timeout=30.0)
    try:
        yield pool, server
    finally:
        pool.close()
        listening.close()


def always(answer: bytes, *, times: int = 1000) -> Talk:
    """So many answers over one connection, which is closed then."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    return talk


async def ask(pool: ConnectionPool, method: str = "GET", within: float = 30.0) -> HttpResponse:
    message = RequestEncoder("http://api", "test").encode(Request(method, "/"), None)
    return await pool.exchange(method, message, within, None, None)


async def test_connection_is_reused_for_consecutive_requests() -> None:
    async with talking(always(OK)) as (pool, server):
        for _ in range(3):
            assert await ask(pool) == HttpResponse(200, {"content-length": "2"}, b"{}")
        assert server.connections == 1


async def test_concurrent_requests_have_their_own_connections_up_to_the_limit() -> None:
    async with talking(always(OK), limit=2) as (pool, server):
        answers = await asyncio.gather(*(ask(pool) for _ in range(7)))
        assert [each.status for each in answers] == [200] * 7
        assert server.connections == 2


async def test_cancelled_waiter_takes_no_connection() -> None:
    async with talking(always(OK), limit=1) as (pool, _):
        requests = [asyncio.create_task(ask(pool)) for _ in range(4)]
        await asyncio.sleep(0)
        requests[1].cancel()
        await requests[0]
        requests[2].cancel()  # at the moment when it was given the place
        await asyncio.gather(*requests, return_exceptions=True)
        assert [request.cancelled() for request in requests] == [False, True, True, False]
        assert (await asyncio.wait_for(ask(pool), 30)).status == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_response_framings_are_understood(answer: bytes) -> None:
    async with talking(always(answer)) as (pool, _):
        assert [(await ask(pool)).body for _ in range(2)] == [b"{}", b"{}"]


async def test_response_can_end_with_the_connection() -> None:
    async with talking(always(b"HTTP/1.1 200 OK\r\nServer: old\r\n\r\n{}", times=1)) as (pool, _):
        assert (await ask(pool)).body == b"{}"


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
async def test_malformed_response_is_a_connection_error(answer: bytes) -> None:
    async with talking(always(answer, times=1)) as (pool, _):
        with pytest.raises(ConnectionError):
            await ask(pool)


async def test_corrupt_compressed_body_is_a_connection_error() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    async with talking(always(answer)) as (pool, _):
        with pytest.raises(ConnectionError, match="decompressed"):
            await ask(pool)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_idempotent_request_is_repeated_when_a_reused_connection_is_closed(method: str) -> None:
    async with talking(closing_after_the_first()) as (pool, server):
        assert (await ask(pool)).status == 200
        assert (await ask(pool, method)).status == 200
        assert server.connections == 2


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_write_is_not_repeated_when_a_reused_connection_is_closed(method: str) -> None:
    async with talking(closing_after_the_first()) as (pool, server):
        assert (await ask(pool)).status == 200
        with pytest.raises(ConnectionError):
            await ask(pool, method)
        assert server.connections == 1


def closing_after_the_first() -> Talk:
    """Answers one request, and hangs up on the next without a word."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    return talk


async def test_request_on_a_new_connection_is_not_repeated() -> None:
    async with talking(always(OK, times=0)) as (pool, server):
        with pytest.raises(ConnectionError):
            await ask(pool)
        assert server.connections == 1


async def test_response_to_a_cancelled_request_is_not_given_to_another() -> None:
    answered = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if server.connections == 1:
            await answered.wait()
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(OK)

    async with talking(talk) as (pool, server):
        with pytest.raises(TimeoutError):
            await ask(pool, within=0.01)
        given_up = asyncio.create_task(ask(pool))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        answered.set()
        assert (await ask(pool)).status == 200


async def test_header_injection_is_rejected() -> None:
    messages = RequestEncoder("https://api", "test")
    for request, authorization in [
        (Request("GET", "/a HTTP/1.1\r\nHost: other\r\n\r\n"), None),
        (Request("GET", "/a"), "Bearer x\nImpersonate-User: root"),
        (Request("POST", "/a", body={}, content_type="application/json\r\nX: y"), None),
    ]:
        with pytest.raises(ValueError, match="line break or NUL"):
            messages.encode(request, authorization)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nServer: old\r\n",
        b"HTTP/1.1 200 OK\r\nServer: old\r\nContent-Len",
    ],
)
async def test_incomplete_head_is_a_connection_error(head: bytes) -> None:
    async with talking(always(head, times=1)) as (pool, _):
        with pytest.raises(ConnectionError):
            await ask(pool)


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\nContent-Le", OK])
async def test_unsolicited_bytes_close_the_connection(behind: bytes) -> None:
    async with talking(always(OK + behind)) as (pool, server):
        for _ in range(3):
            assert await ask(pool) == HttpResponse(200, {"content-length": "2"}, b"{}")
        assert server.connections == 3


async def test_waiting_for_a_connection_times_out() -> None:
    async with talking(never, limit=1) as (pool, server):
        first = asyncio.create_task(ask(pool))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await ask(pool, within=0.01)
        pool.close()
        await asyncio.gather(first, return_exceptions=True)
        assert server.connections <= 1


async def test_close_ends_every_wait() -> None:
    """For an answer, for a connection, and for others to be done."""
    reached = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reached.set()
        await reader.read()

    async with talking(talk, limit=2) as (pool, _):
        requests = [asyncio.create_task(ask(pool))]
        await reached.wait()
        requests += [asyncio.create_task(ask(pool)) for _ in range(3)]
        await asyncio.sleep(0)
        pool.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 30)
        assert [str(each) for each in outcomes] == ["the transport was closed"] * 4
        with pytest.raises(ConnectionError, match="closed"):
            await ask(pool)


async def test_failed_and_outdated_connections_are_not_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with talking(always(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", times=1)) as (pool, _):
        for _ in range(3):
            with pytest.raises(ConnectionError):
                await ask(pool)
        assert not pool._connections
    async with talking(always(OK)) as (pool, _):
        await asyncio.gather(ask(pool), ask(pool))
        pool._idle[ssl.create_default_context()] = pool._idle.pop(None)
        monkeypatch.setattr(connection_pool, "IDLE", 0.0)
        await ask(pool)
        assert len(pool._connections) == 1
        assert list(pool._idle) == [None]


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
