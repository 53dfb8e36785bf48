"""Header sections as the router forwards them: without hop-by-hop headers, credentials and its own ``X-Sandbox-*``."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import orjson

from sandpool.router.destination import Destination
from sandpool.router.http1 import Framing, Header, MalformedMessage, connection_options
from sandpool.router.signed_urls import PARAMETER, label_of, without_cookie

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_ROUTER_PREFIX: Final = b"x-sandbox-"
#: Dropped from requests: credentials are for the router only, and the rest is written anew.
_DROPPED_FROM_REQUESTS: Final = frozenset({b"authorization", b"x-forwarded-for", b"host", b"content-length", b"expect"})
_DROPPED_FROM_UPGRADES: Final = _DROPPED_FROM_REQUESTS | {b"origin"}
_DROPPED_FROM_RESPONSES: Final = frozenset({b"content-length"})
#: The router decides by these. Which of two values another reader would take is unknown.
_SINGLE: Final = frozenset({b"host", b"authorization", b"origin"})

LAST_CHUNK: Final = b"0\r\n\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
CLOSE: Final = b"Connection: close\r\n"
_URL_COOKIE: Final = PARAMETER.encode()
_END_OF_HEAD: Final = b"\r\n\r\n"


class RequestHeaders:
    """Headers of one request, parsed once.

    A client repeats its headers, so a connection keeps the last ``RequestHeaders`` and reuses it for the same bytes.
    ``destination`` is the router's cache for what it has read from them. ``upgrade`` is the protocol to switch to; a
    request with a body or of HTTP/1.0 cannot switch, and its Upgrade header is dropped (RFC 9110, 7.8). For a host of
    signed URLs, ``url_label`` is its first label.
    """

    __slots__ = (
        "_framing_line",
        "_lines",
        "destination",
        "framing",
        "is_http_1_0",
        "keeps_alive",
        "text",
        "upgrade",
        "url_label",
    )

    def __init__(self, fields: list[Header], *, is_http_1_0: bool = False) -> None:
        self.is_http_1_0 = is_http_1_0
        self.framing = Framing(fields, is_http_1_0=is_http_1_0)
        self.destination: Destination | None = None
        self.text = _by_name(fields)
        self.url_label = label_of(self.text.get("host", ""))
        options = connection_options(fields)
        self.keeps_alive = b"keep-alive" in options if is_http_1_0 else b"close" not in options
        may_switch = b"upgrade" in options and not is_http_1_0 and not self.has_body
        self.upgrade = self.text.get("upgrade", "").encode("latin-1") if may_switch else b""
        dropped = _DROPPED_FROM_UPGRADES if self.upgrade else _DROPPED_FROM_REQUESTS
        self._lines = _forwarded(fields, dropped, options)
        length = self.framing.length
        self._framing_line = CHUNKED if self.framing.is_chunked else b"" if length is None else content_length(length)

    @property
    def has_body(self) -> bool:
        return self.framing.is_chunked or bool(self.framing.length)

    @property
    def expects_continue(self) -> bool:
        return not self.is_http_1_0 and self.text.get("expect", "").lower() == "100-continue"

    def head(self, method: bytes, target: bytes, *, host: str, client: str) -> bytes:
        """Return the head to send to the sandbox."""
        switch = b"Connection: Upgrade\r\nUpgrade: %b\r\n" % self.upgrade if self.upgrade else b""
        return b"%b %b HTTP/1.1\r\nHost: %b\r\n%bX-Forwarded-For: %b\r\n%b%b\r\n" % (
            *(method, target, host.encode(), self._lines),
            *(client.encode(), self._framing_line, switch),
        )


class ResponseHeaders:
    """Headers of one response as they are forwarded."""

    __slots__ = ("_lines",)

    def __init__(self, fields: list[Header]) -> None:
        self._lines = _forwarded(fields, _DROPPED_FROM_RESPONSES, connection_options(fields))

    def head(self, status: int, reason: bytes, *, framing: bytes, connection: bytes) -> bytes:
        return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n" % (status, reason, self._lines, framing, connection)

    def switching_head(self, upgrade: bytes) -> bytes:
        return b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %b\r\n%b\r\n" % (
            *(upgrade, self._lines),
        )


def error_response(status: int, detail: str, *, connection: bytes) -> bytes:
    """Return a response of the router itself."""
    return json_response(status, orjson.dumps({"detail": detail}), connection=connection)


def json_response(status: int, body: bytes, *, connection: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    return head.encode() + connection + b"\r\n" + body


def connection_line(*, keep: bool, is_http_1_0: bool) -> bytes:
    """Return the Connection header of a response: close, or keep-alive for HTTP/1.0, where it is not the default."""
    if not keep:
        return CLOSE
    return b"Connection: keep-alive\r\n" if is_http_1_0 else b""


def without_body(response: bytes) -> bytes:
    return response[: response.index(_END_OF_HEAD) + len(_END_OF_HEAD)]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def content_length(length: int) -> bytes:
    return b"Content-Length: %d\r\n" % length


def _by_name(fields: list[Header]) -> dict[str, str]:
    """Map lower-case names to values; of several values of one name, the last."""
    named: dict[str, str] = {}
    for name, value in fields:
        lowered = name.lower()
        text = lowered.decode()
        if text in named and (lowered in _SINGLE or lowered.startswith(_ROUTER_PREFIX)):
            raise MalformedMessage(f"more than one {text} header")
        named[text] = value.decode("latin-1")
    return named


def _forwarded(fields: list[Header], dropped: frozenset[bytes], options: set[bytes]) -> bytes:
    return b"".join([b"%b: %b\r\n" % field for field in _kept(fields, dropped, options)])


def _kept(fields: list[Header], dropped: frozenset[bytes], options: set[bytes]) -> Iterator[Header]:
    """Leave out, besides the ``dropped``, headers that Connection names (RFC 9110, 7.6.1)."""
    for name, value in fields:
        lowered = name.lower()
        if lowered in _HOP_BY_HOP or lowered in dropped or lowered in options or lowered.startswith(_ROUTER_PREFIX):
            continue
        if lowered == b"cookie" and _URL_COOKIE in value:
            value = without_cookie(value)
            if not value:
                continue
        yield name, value
