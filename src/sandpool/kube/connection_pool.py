"""Kept-alive connections to one server, and one request at a time over each.

A controller spends its life sending small requests and reading small answers. A client library made for everything
takes several times as long for that as encoding, decoding and encryption together, so here is what is needed and no
more: HTTP/1.1, a body with a length or in chunks, gzip. Watches and proxies are left to the library (``kube.http``).

A request that was sent and not answered may have been carried out. It is sent again only if repeating it does no harm,
and the connection was an old one that turned out to be closed already: servers close those when they like.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

import httptools

#: Seconds after which a connection that nobody used is not used any more; servers close them after about as long.
IDLE: Final = 60.0

_GZIP: Final = 16 + zlib.MAX_WBITS
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})


class HttpResponse(NamedTuple):
    """The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _StaleConnection(ConnectionError):
    """The connection was closed before anything of an answer came."""


class _Parser(Protocol):
    """What is used of httptools' parser, which comes without types."""

    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class PooledConnection(asyncio.Protocol):
    """One connection. The methods that begin with ``on_`` are called by the parser."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[HttpResponse] | None = None  # of the request that is under way
        self._parser: _Parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._begun = False  # something of the answer has come
        self._headed = False  # all of its head has
        self.used = loop.time()  # last

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: bytes, within: float) -> HttpResponse:
        """Send a request and wait for the answer; the connection is closed if there is none."""
        assert self._transport is not None and self._waiter is None
        self._begun = self._headed = False
        waiter: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(within, self.close, TimeoutError("no answer in time"))
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
            self.close()  # nothing was asked for
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close(ConnectionError(f"the answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and self._headed and self._ends_with_the_connection():
            self.on_message_complete()
        why = "the connection was closed before the end of the answer"
        self._fail(ConnectionError(why) if self._begun else _StaleConnection(str(error or "the connection was closed")))

    def _ends_with_the_connection(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return not names & {b"content-length", b"transfer-encoding"}

    # -- the parser ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers, self._body = [], []
        self._headed = False
        if self._waiter is None or self._waiter.done():
            self.close()  # another answer than the one that was asked for

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
            self.close(ConnectionError(f"the answer cannot be unpacked: {error}"))
            return
        self._waiter.set_result(HttpResponse(status, headers, body))
        self.used = self._loop.time()
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()


class ConnectionPool:
    """The connections to one server, at most ``limit`` at a time. Whoever finds none that is free waits in line.

    Raises ``TimeoutError`` when connecting, or an answer, takes too long, and ``OSError`` for everything else.
    """

    def __init__(self, host: str, port: int, *, limit: int, connect_timeout: float) -> None:
        self.host = host
        self.port = port
        self.connect_timeout = connect_timeout
        self._limit = limit
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()  # who waits until others are done
        self._connecting: set[asyncio.Timeout] = set()
        self._connections: set[PooledConnection] = (
            set()
        )  # all that are open, and some that have been closed while nobody used them
        # Those that nobody uses, the one used last at the end, by how they are encrypted: that is, by who we are.
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
        """Wait for the place of somebody who is done."""
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
        """Let go of what will not be used again: what has waited for too long, and was of who we were before."""
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
                    _, connection = await loop.create_connection(
                        partial(PooledConnection, loop), self.host, self.port, ssl=tls, server_hostname=name
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
