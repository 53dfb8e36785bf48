"""Encodes API requests as HTTP/1.1 messages."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import orjson

from sandpool.kube.transport import JSON, Request
from sandpool.kube.user_agent import current

_WITH_A_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class RequestEncoder:
    """Encoder for one server. A path in the server's address is prepended to the path of every request."""

    def __init__(self, server: str, user_agent: str) -> None:
        url = urlsplit(server)
        self._path = url.path
        self._user_agent = user_agent
        self._always = (f"Host: {url.netloc}", f"Accept: {JSON}", "Accept-Encoding: gzip")

    def encode(self, request: Request, authorization: str | None) -> bytes:
        lines = [f"{request.method} {self._path}{target(request)} HTTP/1.1", *self._always]
        lines.append(f"User-Agent: {current(self._user_agent)}")
        if authorization is not None:
            lines.append(f"Authorization: {authorization}")
        body = b""
        if request.body is not None:
            body = request.body if isinstance(request.body, bytes) else orjson.dumps(request.body)
            lines.append(f"Content-Type: {request.content_type}")
        if body or request.method in _WITH_A_BODY:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
            raise ValueError("the request head contains a line break or NUL inside a header or the path")
        return head.encode("latin-1") + b"\r\n\r\n" + body


def target(request: Request) -> str:
    """The request target: path and query."""
    return request.path + _query(tuple(request.query.items())) if request.query else request.path


@lru_cache(1024)  # writers reuse a few queries
def _query(parameters: tuple[tuple[str, str], ...]) -> str:
    return "?" + urlencode(parameters, quote_via=quote)
