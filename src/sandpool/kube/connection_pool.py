"""Connection pool: keep-alive HTTP/1.1 connections to one server, each with one request in flight at a time.

A controller sends many small requests and reads small responses. A general HTTP client library needs several times the
CPU time of encoding, decoding and TLS together. This module implements only what the API needs: HTTP/1.1, bodies with
a length or in chunks, gzip. Watches and proxies use aiohttp (``kube.http``).

A server may have executed a request that it did not answer. The pool resends a request only if its method is
idempotent and a reused connection was closed before the first byte of the response: servers close idle connections at
any time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

import httptools

#: Seconds after which an idle connection is not reused. Servers close idle connections after about as long.
IDLE: Final = 60.0

_GZIP: Final = 16 + zlib.MAX_WBITS
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})


class HttpResponse(NamedTuple):
    """A complete response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _StaleConnection(ConnectionError):
    """The connection was closed before the first byte of the response."""


class _Parser(Protocol):
    """The used part of httptools' parser, which has no type annotations."""

    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class PooledConnection(asyncio.Protocol):
    """One connection. The parser calls the ``on_`` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[HttpResponse] | None = None  # of the request in flight
        self._parser: _Parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._begun = False  # the first byte of the response has arrived
        self._headed = False  # the head of the response is complete
        self.used = loop.time()  # time of the last use

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: bytes, within: float) -> HttpResponse:
        """Send a request and return the response. Closes the connection on failure or cancellation."""
        assert self._transport is not None and self._waiter is None
        self._begun = self._headed = False
        waiter: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(within, self.close, TimeoutError("no response in time"))
        self._transport.write(message)
        try:
            return await waiter
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def close(self, why: Exception | None = None) -> None:
        self._fail(why or ConnectionError("the connection was closed"))
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: BaseException) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(why)

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()  # no request is in flight
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close(ConnectionError(f"the response is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and self._headed and self._ends_with_the_connection():
            self.on_message_complete()
        why = "the connection was closed before the end of the response"
        self._fail(ConnectionError(why) if self._begun else _StaleConnection(str(error or "the connection was closed")))

    def _ends_with_the_connection(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return not names & {b"content-length", b"transfer-encoding"}

    # -- the parser ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers, self._body = [], []
        self._headed = False
        if self._waiter is None or self._waiter.done():
            self.close()  # a second response to one request

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._waiter is None or self._waiter.done():
            return
        headers = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        body = b"".join(self._body)
        self._body = []
        try:
            if headers.get("content-encoding") == "gzip":
                body = zlib.decompress(body, _GZIP)
        except zlib.error as error:
            self.close(ConnectionError(f"the response cannot be decompressed: {error}"))
            return
        self._waiter.set_result(HttpResponse(status, headers, body))
        self.used = self._loop.time()
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()


class ConnectionPool:
    """The connections to one server: at most ``limit`` requests in flight, further requests wait in FIFO order.

    Raises ``TimeoutError`` when connecting or the response takes too long, and ``OSError`` for every other failure.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        limit: int,
        connect_timeout: float,
        connect: Callable[[], Awaitable[socket.socket]] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.connect_timeout = connect_timeout
        self.connect = connect  # opens a connection without TLS; None: TCP to ``host``
        self._limit = limit
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()  # requests that wait for a slot
        self._connecting: set[asyncio.Timeout] = set()
        self._connections: set[PooledConnection] = set()  # all open connections, and some that were closed while idle
        # Idle connections by TLS context, which includes the client certificate; the most recently used is last.
        self._idle: dict[ssl.SSLContext | None, deque[PooledConnection]] = {}
        self._closed = False

    async def exchange(
        self, method: str, message: bytes, within: float, tls: ssl.SSLContext | None, server_name: str | None
    ) -> HttpResponse:
        if self._closed:
            raise _closed()
        if self._in_flight < self._limit:
            self._in_flight += 1
        else:
            async with asyncio.timeout(within):
                await self._wait_for_slot()
        try:
            if (connection := self._take(tls)) is not None:
                try:
                    return await self._exchange_on(connection, message, within, tls)
                except _StaleConnection:
                    if method not in _REPEATABLE:
                        raise
            return await self._exchange_on(await self._connect(tls, server_name), message, within, tls)
        finally:
            self._release_slot()

    def close(self) -> None:
        self._closed = True
        while self._waiting:
            given = self._waiting.popleft()
            if not given.done():
                given.set_exception(_closed())
        for connecting in self._connecting:
            if not connecting.expired():
                connecting.reschedule(asyncio.get_running_loop().time())
        for connection in self._connections:
            connection.close(_closed())
        self._connections.clear()
        self._idle.clear()

    async def _wait_for_slot(self) -> None:
        """Wait until a finished request hands over its slot."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled() and given.exception() is None:
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        while self._waiting:
            given = self._waiting.popleft()
            if not given.done():
                given.set_result(None)
                return
        self._in_flight -= 1

    async def _exchange_on(
        self, connection: PooledConnection, message: bytes, within: float, tls: ssl.SSLContext | None
    ) -> HttpResponse:
        try:
            answer = await connection.exchange(message, within)
        except BaseException:
            self._connections.discard(connection)
            raise
        if connection.open:
            self._idle.setdefault(tls, deque()).append(connection)
        else:
            self._connections.discard(connection)
        return answer

    def _take(self, tls: ssl.SSLContext | None) -> PooledConnection | None:
        idle = self._idle.get(tls)
        while idle:
            connection = idle.pop()
            if self._is_reusable(connection):
                return connection
            self._drop(connection)
        return None

    def _is_reusable(self, connection: PooledConnection) -> bool:
        return connection.open and asyncio.get_running_loop().time() - connection.used < IDLE

    def _drop(self, connection: PooledConnection) -> None:
        connection.close()
        self._connections.discard(connection)

    def _drop_unusable(self) -> None:
        """Close connections that were idle for too long, including those of replaced client certificates."""
        for tls, idle in list(self._idle.items()):
            while idle and not self._is_reusable(idle[0]):
                self._drop(idle.popleft())
            if not idle:
                del self._idle[tls]

    async def _connect(self, tls: ssl.SSLContext | None, server_name: str | None) -> PooledConnection:
        self._drop_unusable()
        loop = asyncio.get_running_loop()
        name = (server_name or self.host) if tls is not None else None
        try:
            async with asyncio.timeout(self.connect_timeout) as connecting:
                self._connecting.add(connecting)
                try:
                    factory = partial(PooledConnection, loop)
                    if self.connect is not None:
                        _, connection = await loop.create_unix_connection(factory, sock=await self.connect())
                    else:
                        _, connection = await loop.create_connection(
                            factory, self.host, self.port, ssl=tls, server_hostname=name
                        )
                finally:
                    self._connecting.discard(connecting)
        except TimeoutError as error:
            if self._closed:
                raise _closed() from error
            raise
        if self._closed:
            connection.close()
            raise _closed()
        self._connections.add(connection)
        return connection


def _closed() -> ConnectionError:
    return ConnectionError("the transport was closed")
