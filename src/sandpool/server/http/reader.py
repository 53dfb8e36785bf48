"""Parses requests: the input half of a connection.

Runs inside ``data_received``. A callback that refuses a request raises ``ApiError``; httptools stops there and ``feed``
raises it to the connection, which responds and stops reading. The memory per client is bounded by the head and body
limits: bytes are counted as they arrive, before the parser interprets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

import httptools

from sandpool.kube.errors import ApiError, BadRequest, TooLarge
from sandpool.server.http.cycle import UNAUTHENTICATED, RequestCycle
from sandpool.server.http.limits import HttpLimits
from sandpool.server.http.target import parse_query, split_target
from sandpool.server.request.messages import ServerRequest


class ReadStage(Enum):
    """The part of a request that the reader is receiving."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"


IDLE, HEAD, BODY = ReadStage

_NO_QUERY: Mapping[str, str] = {}
# Common headers by common spelling: decoding them for every request costs as much as the rest of the parsing.
_USUAL = {
    spelling.encode(): name.lower()
    for name in (
        "Host",
        "User-Agent",
        "Accept",
        "Accept-Encoding",
        "Authorization",
        "Content-Type",
        "Content-Length",
        "Connection",
        "Kubectl-Command",
        "Kubectl-Session",
    )
    for spelling in (name, name.lower())
}


class RequestSink(Protocol):
    """The interface of a connection to its reader."""

    limits: HttpLimits

    def open_cycle(self, request: ServerRequest, keep_alive: bool, legacy: bool) -> RequestCycle: ...

    def identify(self, cycle: RequestCycle, fields: Sequence[tuple[str, str]]) -> None:
        """Authenticate the request before its body is read, so that unauthenticated clients cannot make the server
        buffer one. ``fields`` are its unusual headers. Raises ``ApiError``."""
        ...

    def buffered(self, cycle: RequestCycle, count: int) -> None:
        """Count bytes of a body. Raises ``ApiError``."""
        ...

    def expected_continue(self) -> None:
        """The client waits for permission to send the body."""
        ...

    def received(self, cycle: RequestCycle) -> None:
        """A request is complete."""
        ...


class RequestReader:
    __slots__ = (
        "_body",
        "_fed",
        "_fields",
        "_headers",
        "_length",
        "_parser",
        "_read",
        "_reception",
        "_target",
        "cycle",
        "rest",
        "stage",
    )

    def __init__(self, reception: RequestSink) -> None:
        self._reception = reception
        self._parser = httptools.HttpRequestParser(self)
        self.stage: ReadStage = IDLE
        self.cycle: RequestCycle | None = None  # of the request that is being received
        self.rest = b""  # bytes after an upgrade request
        self._target = b""
        self._headers: dict[str, str] = {}
        # Headers that are not usual, one by one: repeated ones are separate values, which may contain commas.
        self._fields: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._length = 0  # of the body so far
        self._read = 0  # bytes of the current read
        # Bytes of the reads after the one in which the current stage began. Where in a read a stage begins is not
        # known, so limits may be exceeded by one read (256 KiB) before this notices.
        self._fed = 0

    def feed(self, data: bytes) -> bool:
        """Parse bytes. Returns False after the last request on the connection. Raises ``ApiError`` to refuse one."""
        self._read = len(data)
        self._fed += self._read
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The following bytes are not HTTP; they are dropped if the upgrade is refused.
            self.rest = data[upgrade.args[0] :]
            return False
        except httptools.HttpParserCallbackError as problem:
            raise problem.__context__ or problem from None
        except httptools.HttpParserError as problem:
            raise BadRequest(f"malformed HTTP request: {problem}") from None
        if self.stage is not IDLE:
            limits = self._reception.limits
            if self.stage is HEAD and self._fed > limits.head:
                raise head_too_large()
            if self.stage is BODY and self._fed > 2 * limits.body + limits.head:
                raise body_too_large(limits.body)  # chunk sizes, extensions and trailers longer than any content
        return True

    def close(self) -> None:
        """Break the reference cycle of reader, parser and connection. The garbage collector would free them late,
        because it does not see the memory of the TLS connection."""
        del self._parser, self._reception

    # -- called by the parser ----------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        if self.stage is not IDLE:
            self._target += url
            return
        self.stage = HEAD
        self._fed = 0
        self._target = url
        self._headers = {}
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is BODY:
            return  # trailers are ignored: the request is authenticated already
        text = value.decode("latin-1")
        key = _USUAL.get(name)
        if key is None:
            key = name.decode("latin-1").lower()
            self._fields.append((key, text))
        headers = self._headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        parser, headers, reception = self._parser, self._headers, self._reception
        limits = reception.limits
        if self._fed + self._read > limits.head and self._head_size() > limits.head:
            raise head_too_large()
        request = ServerRequest(parser.get_method().decode("latin-1"), "", UNAUTHENTICATED, _NO_QUERY, "", headers)
        legacy = parser.get_http_version() != "1.1"
        cycle = self.cycle = reception.open_cycle(request, parser.should_keep_alive(), legacy)
        request.path, query = split_target(self._target)
        if query:
            request.raw_query = query
            request.query = parse_query(query)
        if "host" not in headers and not cycle.legacy:
            raise BadRequest("missing required Host header")
        reception.identify(cycle, self._fields)
        self.stage = BODY
        if "content-length" in headers or "transfer-encoding" in headers:
            self._begin_body(headers, limits)

    def on_body(self, body: bytes) -> None:
        self._length += len(body)
        if self._length > self._reception.limits.body:
            raise body_too_large(self._reception.limits.body)
        if self.cycle is not None:
            self._reception.buffered(self.cycle, len(body))
        self._body.append(body)

    def on_message_complete(self) -> None:
        cycle, self.cycle = self.cycle, None
        self.stage = IDLE
        if cycle is None:
            return
        body = self._body
        if body:
            cycle.request.body = body[0] if len(body) == 1 else b"".join(body)
            self._body = []
            self._length = 0
        self._reception.received(cycle)

    def _begin_body(self, headers: dict[str, str], limits: HttpLimits) -> None:
        if int(headers.get("content-length", 0)) > limits.body:
            raise body_too_large(limits.body)
        self._fed = 0
        expect = headers.get("expect")
        if expect is None:
            return
        if expect.lower() != "100-continue":
            raise ApiError("only the expectation 100-continue is supported", code=417, reason="ExpectationFailed")
        self._reception.expected_continue()

    def _head_size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers.items())


def head_too_large() -> ApiError:
    return ApiError("request header fields too large", code=431, reason="RequestHeaderFieldsTooLarge")


def body_too_large(limit: int) -> TooLarge:
    return TooLarge(f"Request entity too large: limit is {limit}")
