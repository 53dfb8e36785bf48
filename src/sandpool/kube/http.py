"""The transport to any Kubernetes API over HTTP.

Requests share a pool of kept-alive connections. Watches have connections of their own: one lives for minutes, and a
pool full of watches would leave no room for requests. Nothing waits for ever: connecting, a request as a whole and
the silence on a watch are all limited, because a connection whose other end vanished without a word looks exactly
like a quiet one.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from yarl import URL

from sandpool import __version__
from sandpool.kube.connection import Connection
from sandpool.kube.credentials import Grant
from sandpool.kube.errors import ApiError, from_status
from sandpool.kube.retry import Retry
from sandpool.kube.transport import JSON, Request, WatchEvent

_USER_AGENT = f"sandpool/{__version__}"
# Objects are limited to 3 MiB; a line beyond this is not an event, whatever it is.
_MAX_LINE = 32 * 1024 * 1024
_LARGE = 1024 * 1024


class HttpTransport:
    """Talks to one API server. Belongs to the event loop it is first used in.

    ``connect_timeout`` and ``request_timeout`` limit one attempt, ``watch_idle_timeout`` the time between two events
    of a watch (servers send bookmarks about once a minute).
    """

    def __init__(
        self,
        connection: Connection,
        *,
        connect_timeout: float = 10.0,
        request_timeout: float = 60.0,
        watch_idle_timeout: float = 180.0,
        max_connections: int = 100,
        retry: Retry | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.connection = connection
        self.connect_timeout = connect_timeout
        self.request_timeout = request_timeout
        self.watch_idle_timeout = watch_idle_timeout
        self.max_connections = max_connections
        self.retry = retry or Retry()
        self.sleep = sleep
        self._base = connection.server.rstrip("/")
        self._closed = False
        self._requests: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None
        # Everything that waits for the network right now; closing ends the wait.
        self._waiting: set[asyncio.Timeout] = set()

    async def request(self, request: Request) -> Any:
        """See ``Transport.request``. An answer that is plain text (``/readyz``, a log) is returned as such."""
        if self._requests is None:
            self._requests = self._session(limit=self.max_connections, keepalive_timeout=60.0)
        response, body = await self._answer(self._requests, request)
        if response.content_type == "text/plain":
            return body.decode(errors="replace")
        return _decode(body)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        """See ``Transport.stream``."""
        try:
            if self._watches is None:
                self._watches = self._session(limit=0, force_close=True)
            response, _ = await self._answer(self._watches, request, unread=True)
            async with response:
                async for line in self._lines(response):
                    yield _event(line)
        except ConnectionError:
            if not self._closed:
                raise

    async def close(self) -> None:
        self._closed = True
        for waiting in self._waiting:
            if not waiting.expired():
                waiting.reschedule(asyncio.get_running_loop().time())
        for session in (self._requests, self._watches):
            if session is not None:
                await session.close()

    @asynccontextmanager
    async def _network(self, limit: float) -> AsyncIterator[None]:
        """Wait for the network within, until ``limit`` or until the transport is closed.

        What goes wrong is raised as callers know it: ``TimeoutError``, or ``ConnectionError`` for all the rest.
        """
        if self._closed:
            raise ConnectionError("the transport is closed")
        try:
            async with asyncio.timeout(limit) as waiting:
                self._waiting.add(waiting)
                try:
                    yield
                finally:
                    self._waiting.discard(waiting)
        except TimeoutError as error:
            if self._closed:
                raise ConnectionError("the transport was closed") from error
            raise TimeoutError(f"{self._base} did not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            # What aiohttp says of a connection that could not be made is mostly about itself.
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            raise ConnectionError(f"no answer from {self._base}: {str(cause) or type(cause).__name__}") from error

    def _session(self, **limits: Any) -> aiohttp.ClientSession:
        if self._closed:
            raise ConnectionError("the transport is closed")
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(**limits),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_timeout),
            headers={"User-Agent": _USER_AGENT, "Accept": JSON, "Accept-Encoding": "gzip"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def _answer(
        self, session: aiohttp.ClientSession, request: Request, *, unread: bool = False
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The first good answer. Tries again where that is safe; raises the last ``ApiError`` otherwise."""
        credentials = self.connection.credentials
        renewed = False
        attempt = 0
        while True:
            grant = await credentials.grant()
            response, body = await self._send(session, request, grant, unread)
            if response.status < 300:
                return response, body
            error = _refusal(response.status, body)
            if error.code == 401 and not renewed:
                renewed = await credentials.renew(grant)
                if renewed:
                    continue
            attempt += 1
            delay = self.retry.delay(request.method, error, response.headers, attempt)
            if delay is None:
                raise error
            await self.sleep(delay)

    async def _send(
        self, session: aiohttp.ClientSession, request: Request, grant: Grant, unread: bool
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """One attempt: the response and its body, which for a good answer may be left ``unread``."""
        body = request.body
        headers = {} if body is None else {"Content-Type": request.content_type}
        if grant.authorization is not None:
            headers["Authorization"] = grant.authorization
        connection = self.connection
        # A watch as a whole may take any time, but not until it begins. (A GET, PUT or DELETE that meets a kept-alive
        # connection the server has just closed is sent again by aiohttp, once, on a new one.)
        async with self._network(self.request_timeout):
            response = await session.request(
                request.method,
                self._url(request),
                data=_payload(body),
                headers=headers,
                ssl=grant.tls or connection.tls or True,
                server_hostname=connection.tls_server_name,
                proxy=connection.proxy,
                # An API server does not redirect. Whoever does is not to be trusted with what we send.
                allow_redirects=False,
            )
            if unread and response.status < 300:
                return response, b""
            async with response:
                return response, await response.read()

    def _url(self, request: Request) -> URL:
        url = self._base + request.path
        if request.query:
            url += "?" + urlencode(request.query, quote_via=quote)
        return URL(url, encoded=True)

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The lines of a body as they come, however long (aiohttp's own reader gives up on long ones)."""
        parts: list[bytes] = []  # of the line that has not ended yet
        size = 0
        while True:
            async with self._network(self.watch_idle_timeout):
                chunk = await response.content.readany()
            if not chunk:
                break
            *ended, rest = chunk.split(b"\n")
            for line in ended:
                parts.append(line)
                yield b"".join(parts)
                parts.clear()
                size = 0
            if rest:
                parts.append(rest)
                size += len(rest)
                if size > _MAX_LINE:
                    raise ConnectionError(f"{self._base} sent a watch event of more than {_MAX_LINE} bytes")
        if parts:
            yield b"".join(parts)


def _refusal(code: int, body: bytes) -> ApiError:
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    return from_status(status, code)


def _decode(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ConnectionError(f"the answer is not JSON: {error.msg}") from None


def _event(line: bytes) -> WatchEvent:
    event = _decode(line)
    try:
        type, object = event["type"], event["object"]
    except (TypeError, KeyError):
        raise ConnectionError("a line of the watch is not an event") from None
    if type == "ERROR":
        raise from_status(object, 500)
    return WatchEvent(type, object)


def _payload(body: Any) -> bytes | io.BytesIO | None:
    """The body as aiohttp wants it: what is large as a file, which it sends in pieces instead of warning."""
    if body is None:
        return None
    encoded = body if isinstance(body, bytes) else orjson.dumps(body)
    return encoded if len(encoded) <= _LARGE else io.BytesIO(encoded)
