"""The transport to any Kubernetes API over HTTP.

Requests share a pool of keep-alive connections (``kube.connection_pool``). Each watch has its own connection: a watch
lasts for minutes, and watches in the pool would block requests. Connecting, a whole request and the time between two
watch events have timeouts, because a connection to a vanished peer looks exactly like an idle one.

Requests through a proxy use aiohttp, which is imported when the first one is sent: it takes longer to import than
everything else here together.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from sandpool.kube.connection import Connection
from sandpool.kube.connection_pool import ConnectionPool, HttpResponse
from sandpool.kube.credentials import RequestAuth
from sandpool.kube.errors import ApiError, from_status
from sandpool.kube.http_stream import StreamedResponse, default_tls, open_stream
from sandpool.kube.request_encoder import RequestEncoder, target
from sandpool.kube.retry import Retry
from sandpool.kube.transport import JSON, Request, WatchEvent
from sandpool.kube.user_agent import current

if TYPE_CHECKING:
    import aiohttp

# Objects have at most 3 MiB, and escapes may multiply that. A longer line is not a watch event.
_MAX_LINE = 32 * 1024 * 1024
_LARGE = 1024 * 1024


class HttpTransport:
    """Transport to one API server. Bound to the event loop of its first use.

    ``connect_timeout`` and ``request_timeout`` limit one attempt. ``watch_idle_timeout`` limits the time between two
    events of a watch; servers send bookmarks about once a minute.
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
        self._encoder = RequestEncoder(self._base, connection.user_agent)
        self._closed = False
        self._pool: ConnectionPool | None = None
        self._requests: aiohttp.ClientSession | None = None
        # Timeouts of all current waits for the network; ``close`` expires them.
        self._waiting: set[asyncio.Timeout] = set()

    async def request(self, request: Request) -> Any:
        """See ``Transport.request``. A plain text response (``/readyz``, a log) is returned as a string."""
        send = self._exchange if self.connection.proxy is None else self._through_proxy
        answer = await self._send_with_retries(request, send)
        if answer.headers.get("content-type", "").startswith("text/plain"):
            return answer.body.decode(errors="replace")
        return _decode(answer.body)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        """See ``Transport.stream``."""
        if self._closed:  # not an empty stream: a caller that watches again and again would never wait
            raise ConnectionError("the transport is closed")
        try:
            response = await self._opened(request)
            try:
                async for line in self._lines(response):
                    yield _event(line)
            finally:
                response.abort()
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
        if self._requests is not None:
            await self._requests.close()

    @asynccontextmanager
    async def _network(self, limit: float) -> AsyncIterator[None]:
        """Limit the network waits of the block to ``limit`` seconds; closing the transport also ends them.

        Raises ``TimeoutError`` when the time is over and ``ConnectionError`` for every other network failure.
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
        except OSError as error:
            raise ConnectionError(f"no answer from {self._base}: {str(error) or type(error).__name__}") from error

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.max_connections, keepalive_timeout=60.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_timeout),
            headers={"Accept": JSON, "Accept-Encoding": "gzip"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def _send_with_retries(
        self, request: Request, send: Callable[[Request, RequestAuth], Awaitable[HttpResponse]]
    ) -> HttpResponse:
        """Return the first successful response. Retries where that is safe, else raises the last ``ApiError``."""
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

    # -- over the connection pool -----------------------------------------------------------------------------------

    async def _exchange(self, request: Request, auth: RequestAuth) -> HttpResponse:
        """Send one attempt over the connection pool."""
        if self._closed:
            raise ConnectionError("the transport is closed")
        pool = self._pool
        if pool is None:
            pool = self._pool = self._new_pool()
        tls = (auth.tls or self.connection.tls or default_tls()) if self._base.startswith("https:") else None
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
        assert url.hostname is not None, "Connection validates its server"
        port = url.port or (443 if url.scheme == "https" else 80)
        return ConnectionPool(
            url.hostname,
            port,
            limit=self.max_connections,
            connect_timeout=self.connect_timeout,
            connect=self.connection.connect,
        )

    # -- on a connection of its own ----------------------------------------------------------------------------------

    async def _opened(self, request: Request) -> StreamedResponse:
        """Open a watch and return the response with its body unread."""
        opened = list[StreamedResponse]()

        async def begin(request: Request, auth: RequestAuth) -> HttpResponse:
            # Only the time until the head of the response is limited, not the watch itself.
            async with self._network(self.request_timeout):
                response = await open_stream(
                    self.connection,
                    auth,
                    request.method,
                    target(request),
                    {"Accept": JSON},
                    connect_timeout=self.connect_timeout,
                )
                if response.status < 300:
                    opened.append(response)
                    return HttpResponse(response.status, {}, b"")
                body = b"".join([piece async for piece in response.body()])
                return HttpResponse(response.status, response.headers, body)

        await self._send_with_retries(request, begin)
        return opened[-1]

    async def _lines(self, response: StreamedResponse) -> AsyncIterator[bytes]:
        """Yield the lines of a body as they arrive."""
        parts: list[bytes] = []  # of the incomplete line
        size = 0
        pieces = response.body()
        while True:
            async with self._network(self.watch_idle_timeout):
                chunk = await anext(pieces, b"")
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
        if not response.complete:
            raise ConnectionError(f"{self._base} closed the connection in the middle of a watch")
        if parts:
            yield b"".join(parts)

    # -- with aiohttp ------------------------------------------------------------------------------------------------

    async def _through_proxy(self, request: Request, auth: RequestAuth) -> HttpResponse:
        import aiohttp

        if self._requests is None:
            self._requests = self._session()
        async with self._network(self.request_timeout):
            try:
                async with await self._respond(self._requests, request, auth) as response:
                    return HttpResponse(response.status, _lower(response), await response.read())
            except aiohttp.ClientConnectorError as error:
                # aiohttp's message for a failed connect is mostly about aiohttp; the OS error has the reason.
                raise error.os_error from error
            except aiohttp.ClientError as error:
                raise OSError(str(error) or type(error).__name__) from error

    async def _respond(
        self, session: aiohttp.ClientSession, request: Request, auth: RequestAuth
    ) -> aiohttp.ClientResponse:
        from yarl import URL

        headers = {"User-Agent": current(self.connection.user_agent)}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
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
            # An API server never redirects. Following one could send credentials to another host.
            allow_redirects=False,
        )


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
        raise ConnectionError(f"the response is not JSON: {error.msg}") from None


def _event(line: bytes) -> WatchEvent:
    event = _decode(line)
    try:
        type, object = event["type"], event["object"]
    except (TypeError, KeyError):
        raise ConnectionError("a line of the watch stream is not a watch event") from None
    if type == "ERROR":
        raise from_status(object, 500)
    return WatchEvent(type, object)


def _payload(body: Any) -> bytes | io.BytesIO | None:
    """The body for aiohttp. Large bodies are passed as a file, because aiohttp warns about large byte strings."""
    if body is None:
        return None
    encoded = body if isinstance(body, bytes) else orjson.dumps(body)
    return encoded if len(encoded) <= _LARGE else io.BytesIO(encoded)
