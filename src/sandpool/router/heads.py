"""The heads of requests and answers as they are passed on: less what is between two neighbours only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import orjson

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


def request_head(
    method: bytes, target: bytes, headers: Iterable[Header], *, host: str, client: str, framing: bytes, upgrade: bytes
) -> bytes:
    """What is sent to the sandbox. ``framing`` says how long the body is, ``upgrade`` what is to be spoken instead."""
    kept = list(_kept(headers, _PRIVATE))
    lines = [method, b" ", target, b" HTTP/1.1\r\nHost: ", host.encode(), b"\r\n"]
    for name, value in kept:
        if not upgrade or name.lower() != b"origin":
            lines += (name, b": ", value, b"\r\n")
    lines += (b"X-Forwarded-For: ", client.encode(), b"\r\n", framing)
    if upgrade:
        lines += (b"Connection: Upgrade\r\nUpgrade: ", upgrade, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def response_head(status: int, reason: bytes, headers: Iterable[Header], *, framing: bytes, keep: bool) -> bytes:
    lines = [b"HTTP/1.1 %d " % status, reason, b"\r\n"]
    for name, value in _kept(headers, frozenset({b"content-length"})):
        lines += (name, b": ", value, b"\r\n")
    lines.append(framing)
    if not keep:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def switching_head(headers: Iterable[Header], upgrade: bytes) -> bytes:
    lines = [b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ", upgrade, b"\r\n"]
    for name, value in _kept(headers, frozenset()):
        lines += (name, b": ", value, b"\r\n")
    return b"".join([*lines, b"\r\n"])


def answer(status: int, detail: str, *, keep: bool) -> bytes:
    """An answer of our own."""
    return plain(status, orjson.dumps({"detail": detail}), keep=keep)


def plain(status: int, body: bytes, *, keep: bool) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'OK')}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{'' if keep else 'Connection: close' + chr(13) + chr(10)}\r\n"
    )
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


def length(size: bytes) -> bytes:
    return b"Content-Length: %b\r\n" % size


def _kept(headers: Iterable[Header], dropped: frozenset[bytes]) -> Iterable[Header]:
    found = list(headers)
    named = {
        word.strip().lower() for name, value in found if name.lower() == b"connection" for word in value.split(b",")
    }
    for name, value in found:
        lowered = name.lower()
        if lowered in _NEIGHBOURLY or lowered in dropped or lowered in named or lowered.startswith(_OURS):
            continue
        yield name, value
