"""A minimal HTTP client for kubelets: one request per connection, with support for protocol switches.

Responses are streamed, never buffered: a followed log may go on for days.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

import httptools

from sandpool.server.streams.byte_stream import AsyncioByteStream

_PIECE: Final = 1 << 16
_LONGEST_HEAD: Final = 1 << 16


#: Verifies the peer's certificate (DER) before the request is sent. Raises ``OSError``.
VerifyPeer = Callable[[bytes], None]


class KubeletResponse:
    """A kubelet's HTTP response. ``send_request`` returns it once the head is complete; the caller closes it.

    Header names are in lower case. The parser calls the ``on_`` methods."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""  # bytes after the head of a 101 response
        self._pieces: list[bytes] = []
        self._headed = False
        self._complete = False
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
                if self._complete:
                    return
                data = await self._reader.read(_PIECE)
                if not data or self._closed:
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

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = True

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._complete = True

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if not self._headed:
                raise ConnectionError(f"the response is not HTTP: {error}") from None
            self._complete = True  # keep the bytes that were parsed


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
) -> KubeletResponse:
    """Send a request and read the head of the response. Raises ``OSError`` and closes the connection on failure."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=host)
    answer = KubeletResponse(reader, writer)
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
