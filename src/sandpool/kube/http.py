"""The transport to any Kubernetes API over HTTP.

Requests share a pool of kept-alive connections (``kube.wire``). Watches have connections of their own: one lives for
minutes, and a pool full of watches would leave no room for requests. Nothing waits for ever: connecting, a request as a
whole and the silence on a watch are all limited, because a connection whose other end vanished without a word looks
exactly like a quiet one.

Watches, and whatever has to go through a proxy, are left to aiohttp.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from sandpool import __version__
from sandpool.kube.connection import Connection
from sandpool.kube.connection_pool import ConnectionPool, HttpResponse
from sandpool.kube.credentials import RequestAuth
from sandpool.kube.errors import ApiError, from_status
from sandpool.kube.request_encoder import RequestEncoder, target
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
        self._encoder = RequestEncoder(self._base, _USER_AGENT)
        self._closed = False
        self._pool: ConnectionPool | None = None
        self._requests: aiohttp.ClientSession | None = None
        self._watches: aiohttp.ClientSession | None = None
        # Everything that waits for the network right now; closing ends the wait.
        self._waiting: set[asyncio.Timeout] = set()

    async def request(self, request: Request) -> Any:
        """See ``Transport.request``. An answer that is plain text (``/readyz``, a log) is returned as such."""
        send = self._exchange if self.connection.proxy is None else self._through_proxy
        answer = await self._send_with_retries(request, send)
        if answer.headers.get("content-type", "").startswith("text/plain"):
            return answer.body.decode(errors="replace")
        return _decode(answer.body)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        """See ``Transport.stream``."""
        try:
            response = await self._opened(request)
            async with response:
                try:
                    async for line in self._lines(response):
                        yield _event(line)
                finally:
                    _abort(response)
        except ConnectionError:
            if not self._closed:
                raise

    async def close(self) -> None:
        self._closed = True
        for waiting in self._waiting:
            if not waiting.expired():
                waiting.reschedule(asyncio.get_running_loop().time())
        if self._pool is not None:
            self._pool.close()
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

    async def _send_with_retries(
        self, request: Request, send: Callable[[Request, RequestAuth], Awaitable[HttpResponse]]
    ) -> HttpResponse:
        """The first good answer. Tries again where that is safe; raises the last ``ApiError`` otherwise."""
        credentials = self.connection.credentials
        renewed = False
        attempt = 0
        while True:
            auth = await credentials.auth()
            answer = await send(request, auth)
            if answer.status < 300:
                return answer
            error = _error(answer.status, answer.body)
            if error.code == 401 and not renewed:
                renewed = await credentials.renew(auth)
                if renewed:
                    continue
            attempt += 1
            delay = self.retry.delay(request.method, error, answer.headers, attempt)
            if delay is None:
                raise error
            await self.sleep(delay)

    # -- over our own connections ----------------------------------------------------------------------------------

    async def _exchange(self, request: Request, auth: RequestAuth) -> HttpResponse:
        """One attempt."""
        if self._closed:
            raise ConnectionError("the transport is closed")
        pool = self._pool
        if pool is None:
            pool = self._pool = self._new_pool()
        tls = (auth.tls or self.connection.tls or _default_tls()) if self._base.startswith("https:") else None
        name = self.connection.tls_server_name
        message = self._encoder.encode(request, auth.authorization)
        try:
            return await pool.exchange(request.method, message, self.request_timeout, tls, name)
        except TimeoutError as error:
            raise TimeoutError(f"{self._base} did not answer in time") from error
        except OSError as error:
            raise ConnectionError(f"no answer from {self._base}: {str(error) or type(error).__name__}") from error

    def _new_pool(self) -> ConnectionPool:
        url = urlsplit(self._base)
        assert url.hostname is not None, "a Connection has one"
        port = url.port or (443 if url.scheme == "https" else 80)
        return ConnectionPool(url.hostname, port, limit=self.max_connections, connect_timeout=self.connect_timeout)

    # -- by aiohttp ------------------------------------------------------------------------------------------------

    async def _through_proxy(self, request: Request, auth: RequestAuth) -> HttpResponse:
        if self._requests is None:
            self._requests = self._session(limit=self.max_connections, keepalive_timeout=60.0)
        async with (
            self._network(self.request_timeout),
            await self._respond(self._requests, request, auth) as response,
        ):
            return HttpResponse(response.status, _lower(response), await response.read())

    async def _opened(self, request: Request) -> aiohttp.ClientResponse:
        """The response of a watch that the server agrees to, unread."""
        if self._watches is None:
            self._watches = self._session(limit=0, force_close=True)
        watches, opened = self._watches, list[aiohttp.ClientResponse]()

        async def begin(request: Request, auth: RequestAuth) -> HttpResponse:
            # A watch as a whole may take any time, but not until it begins.
            async with self._network(self.request_timeout):
                response = await self._respond(watches, request, auth)
                if response.status < 300:
                    opened.append(response)
                    return HttpResponse(response.status, {}, b"")
                async with response:
                    return HttpResponse(response.status, _lower(response), await response.read())

        await self._send_with_retries(request, begin)
        return opened[-1]

    async def _respond(
        self, session: aiohttp.ClientSession, request: Request, auth: RequestAuth
    ) -> aiohttp.ClientResponse:
        headers = {} if request.body is None else {"Content-Type": request.content_type}
        if auth.authorization is not None:
            headers["Authorization"] = auth.authorization
        connection = self.connection
        return await session.request(
            request.method,
            URL(self._base + target(request), encoded=True),
            data=_payload(request.body),
            headers=headers,
            ssl=auth.tls or connection.tls or True,
            server_hostname=connection.tls_server_name,
            proxy=connection.proxy,
            # An API server does not redirect. Whoever does is not to be trusted with what we send.
            allow_redirects=False,
        )

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


@lru_cache(1)
def _default_tls() -> ssl.SSLContext:
    """That trusts the system's certificate authorities."""
    return ssl.create_default_context()


def _abort(response: aiohttp.ClientResponse) -> None:
    """Whoever ends a watch does not wait for the server to say goodbye, and the event loop may not be there by then."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _lower(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _error(code: int, body: bytes) -> ApiError:
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
