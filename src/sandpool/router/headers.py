"""The heads of requests and answers as they are passed on: less what is between two neighbours only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from sandpool.router.destination import Destination

#: What one connection says to its other end, and nobody else.
_NEIGHBOURLY: Final = frozenset(
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
_OURS: Final = (b"x-sandbox-",)
#: Who asks is for us to know, and the sandbox has no business with it.
_PRIVATE: Final = frozenset({b"authorization", b"x-forwarded-for", b"host", b"content-length", b"expect"})
_PRIVATE_OF_UPGRADES: Final = _PRIVATE | {b"origin"}
#: Is said anew, in our own words.
_LENGTH: Final = frozenset({b"content-length"})

Header = tuple[bytes, bytes]

_REASONS: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    413: "Content Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class Headers:
    """Of one message, looked through once. ``lines`` are those that are passed on, as they are sent.

    A client and a sandbox that talk to each other say the same thing again and again, so whoever reads a head keeps the
    headers of the last one, and compares first."""

    __slots__ = ("lines", "named", "raw")

    def __init__(self, raw: list[Header], dropped: frozenset[bytes]) -> None:
        self.raw = raw
        self.named = {name.lower(): value for name, value in raw}  # of several with one name, the last
        self.lines = b"".join([b"%b: %b\r\n" % header for header in _kept(raw, dropped)])


class RequestHeaders(Headers):
    """``text`` is for those who decide where a request goes, ``upgrade`` what is to be spoken instead of HTTP, and
    ``framing`` how long the body is, in the words in which it is passed on. ``wanted`` is what the router has read.
    Who is ``old`` speaks HTTP/1.0: knows no chunks and no other protocols."""

    __slots__ = ("framing", "is_chunked", "old", "text", "upgrade", "wanted")

    def __init__(self, raw: list[Header], *, old: bool = False) -> None:
        self.old = old
        upgrade = b"" if old else _upgrade(raw)
        super().__init__(raw, _PRIVATE_OF_UPGRADES if upgrade else _PRIVATE)
        self.upgrade = upgrade
        self.wanted: Destination | None = None
        self.text = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.named.items()}
        size = self.named.get(b"content-length")
        self.is_chunked = size is None and b"transfer-encoding" in self.named
        self.framing = CHUNKED if self.is_chunked else length(size) if size is not None else b""

    def head(self, method: bytes, target: bytes, *, host: str, client: str) -> bytes:
        """What is sent to the sandbox."""
        switch = b"Connection: Upgrade\r\nUpgrade: %b\r\n" % self.upgrade if self.upgrade else b""
        return b"%b %b HTTP/1.1\r\nHost: %b\r\n%bX-Forwarded-For: %b\r\n%b%b\r\n" % (
            *(method, target, host.encode(), self.lines),
            *(client.encode(), self.framing, switch),
        )


class ResponseHeaders(Headers):
    """``size`` is how long the body says it is, None if it does not."""

    __slots__ = ("is_framed", "size")

    def __init__(self, raw: list[Header]) -> None:
        super().__init__(raw, _LENGTH)
        self.size = self.named.get(b"content-length")
        self.is_framed = self.size is not None or b"transfer-encoding" in self.named

    def head(self, status: int, reason: bytes, *, framing: bytes, connection: bytes) -> bytes:
        return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n" % (status, reason, self.lines, framing, connection)


def switching_head(headers: ResponseHeaders, upgrade: bytes) -> bytes:
    return b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %b\r\n%b\r\n" % (
        upgrade,
        headers.lines,
    )


def answer(status: int, detail: str, *, connection: bytes) -> bytes:
    """An answer of our own."""
    return plain(status, orjson.dumps({"detail": detail}), connection=connection)


def plain(status: int, body: bytes, *, connection: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'OK')}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    return head.encode() + connection + b"\r\n" + body


def connection(*, keep: bool, old: bool) -> bytes:
    """What an answer says about the connection: that it ends, or, to those of old, that it does not."""
    if not keep:
        return CLOSE
    return b"Connection: keep-alive\r\n" if old else b""


def without_body(answer: bytes) -> bytes:
    return answer[: answer.index(_END) + len(_END)]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_END: Final = b"\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
CLOSE: Final = b"Connection: close\r\n"


def length(size: bytes) -> bytes:
    return b"Content-Length: %b\r\n" % size


def _upgrade(headers: list[Header]) -> bytes:
    named = {name.lower(): value for name, value in headers}
    return named.get(b"upgrade", b"") if b"upgrade" in _said_of_the_connection(headers) else b""


def _said_of_the_connection(headers: list[Header]) -> set[bytes]:
    return {
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    }


def _kept(headers: list[Header], dropped: frozenset[bytes]) -> Iterator[Header]:
    named = _said_of_the_connection(headers)
    for name, value in headers:
        lowered = name.lower()
        if lowered in _NEIGHBOURLY or lowered in dropped or lowered in named or lowered.startswith(_OURS):
            continue
        yield name, value
