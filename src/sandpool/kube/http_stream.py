"""One HTTP/1.1 request on a connection of its own: watches, logs, and protocol switches.

Responses are streamed, never buffered: a followed log may go on for days. ``open_stream`` is for the API server of a
``Connection``, with its credentials and its proxy; ``send_request`` is for a kubelet.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

import httptools

from sandpool.kube.byte_stream import AsyncioByteStream
from sandpool.kube.connection import Connection
from sandpool.kube.credentials import RequestAuth
from sandpool.kube.tls import client_tls
from sandpool.kube.user_agent import DEFAULT, current

_PIECE: Final = 1 << 16
_LONGEST_HEAD: Final = 1 << 16
# Reading pauses at twice this. When the server closes a connection that is paused, uvloop loses what it had received:
# the end of an output of several megabytes, and the exit code. So only a reader that is far behind pauses.
_BUFFER: Final = 1 << 22


#: Verifies the peer's certificate (DER) before the request is sent. Raises ``OSError``.
VerifyPeer = Callable[[bytes], None]


class StreamedResponse:
    """An HTTP response whose head is complete. The caller closes it, or reads ``body`` to its end.

    Header names are in lower case. ``complete`` tells whether the body ended as announced. The parser calls the
    ``on_`` methods."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""  # bytes after the head of a 101 response
        self._pieces: list[bytes] = []
        self._headed = False
        self.complete = False
        self._broken = False
        self._closed = False

    async def head(self) -> None:
        """Read the head. Raises ``OSError``."""
        seen = 0
        while not self._headed:
            if seen > _LONGEST_HEAD:
                raise ConnectionError("the head of the response is too long")
            data = await self._reader.read(_PIECE)
            if not data:
                raise ConnectionError("the connection was closed before a response")
            seen += len(data)
            self._feed(data)

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in pieces until it, or the connection, ends."""
        try:
            while True:
                pieces, self._pieces = self._pieces, []
                if pieces:
                    yield b"".join(pieces)
                if self.complete or self._broken:
                    return
                data = await self._reader.read(_PIECE)
                if not data or self._closed:
                    self.complete = not self._closed and self._ends_with_the_connection()
                    return
                self._feed(data)
        except OSError:
            return
        finally:
            self.close()

    def byte_stream(self) -> AsyncioByteStream:
        """The connection after a 101 response."""
        return _PrefixedByteStream(self._reader, self._writer, self._rest)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._writer.close()
            del self._parser  # break the reference cycle

    def abort(self) -> None:
        """Close the connection without a TLS shutdown, which could outlast the event loop."""
        if not self._closed:
            self._writer.transport.abort()
            self.close()

    def _ends_with_the_connection(self) -> bool:
        return not self.headers.keys() & {"content-length", "transfer-encoding"}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = self.status >= 200 or self.status == 101
        if not self._headed:
            self.headers.clear()

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self.complete = self._headed

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if not self._headed:
                raise ConnectionError(f"the response is not HTTP: {error}") from None
            self._broken = True  # keep the bytes that were parsed


class _PrefixedByteStream(AsyncioByteStream):
    """A byte stream with some bytes already read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes) -> None:
        super().__init__(reader, writer)
        self._rest = rest

    async def receive(self) -> bytes:
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        return await super().receive()


async def send_request(
    host: str, port: int, tls: ssl.SSLContext, believe: VerifyPeer, request: bytes
) -> StreamedResponse:
    """Send a request and read the head of the response. Raises ``OSError`` and closes the connection on failure."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=host)
    answer = StreamedResponse(reader, writer)
    try:
        believe(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.write(request)
        await answer.head()
    except BaseException:
        answer.close()
        raise
    return answer


def request_head(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in (*lines, "Content-Length: 0", "")).encode("latin-1")


async def open_stream(
    connection: Connection,
    auth: RequestAuth,
    method: str,
    target: str,
    headers: Mapping[str, str],
    *,
    connect_timeout: float = 10.0,
) -> StreamedResponse:
    """Send a request without a body to the API server and read the head of the response.

    ``target`` is path and query, percent-encoded. Raises ``OSError``; the caller limits the time of the response.
    """
    url = urlsplit(connection.server)
    assert url.hostname is not None, "Connection validates its server"
    port = url.port or (443 if url.scheme == "https" else 80)
    tls = (auth.tls or connection.tls or default_tls()) if url.scheme == "https" else None
    all_headers = {"User-Agent": current(connection.user_agent), **headers}
    if auth.authorization is not None:
        all_headers["Authorization"] = auth.authorization
    async with asyncio.timeout(connect_timeout):
        reader, writer = await _connect(connection, url.hostname, port, tls)
    answer = StreamedResponse(reader, writer)
    try:
        writer.write(request_head(method, url.path.rstrip("/") + target, url.netloc, all_headers))
        await answer.head()
    except BaseException:
        answer.abort()
        raise
    return answer


@lru_cache(1)
def default_tls() -> ssl.SSLContext:
    """TLS context that trusts the system's certificate authorities."""
    return client_tls()


async def _connect(
    connection: Connection, host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = (connection.tls_server_name or host) if tls is not None else None
    if connection.connect is not None:
        return await asyncio.open_unix_connection(sock=await connection.connect(), limit=_BUFFER)
    if connection.proxy is None:
        return await asyncio.open_connection(host, port, ssl=tls, server_hostname=name, limit=_BUFFER)
    proxy = urlsplit(connection.proxy)
    over_tls = default_tls() if proxy.scheme == "https" else None
    proxy_port = proxy.port or (443 if over_tls else 80)
    reader, writer = await asyncio.open_connection(proxy.hostname, proxy_port, ssl=over_tls, limit=_BUFFER)
    try:
        await _tunnel(reader, writer, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", proxy.netloc)
        if tls is not None:
            await writer.start_tls(tls, server_hostname=name)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: str, proxy: str) -> None:
    """Ask a proxy for a connection to ``place``. Credentials in the proxy's URL are sent to the proxy."""
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}", f"User-Agent: {DEFAULT}"]
    if "@" in proxy:
        secret = unquote(proxy.rpartition("@")[0]).encode()
        lines.append("Proxy-Authorization: Basic " + base64.b64encode(secret).decode())
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1"))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise ConnectionError("the proxy did not answer") from None
    first = head.split(b"\r\n", 1)[0].decode("latin-1")
    if first.split(" ")[1:2] != ["200"]:
        raise ConnectionError(f"the proxy refused: {first}")
