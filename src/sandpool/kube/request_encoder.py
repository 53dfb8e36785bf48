"""Requests as they go over the wire."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import orjson

from sandpool.kube.transport import JSON, Request

_WITH_A_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class RequestEncoder:
    """For one server; a path in its address is kept in front of every request's."""

    def __init__(self, server: str, user_agent: str) -> None:
        url = urlsplit(server)
        self._path = url.path
        self._always = (f"Host: {url.netloc}", f"User-Agent: {user_agent}", f"Accept: {JSON}", "Accept-Encoding: gzip")

    def encode(self, request: Request, authorization: str | None) -> bytes:
        lines = [f"{request.method} {self._path}{target(request)} HTTP/1.1", *self._always]
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
            raise ValueError("a line of the head of a request ends where it should not")
        return head.encode("latin-1") + b"\r\n\r\n" + body


def target(request: Request) -> str:
    """Path and query."""
    return request.path + _query(tuple(request.query.items())) if request.query else request.path


@lru_cache(1024)  # writers use the same few again and again
def _query(parameters: tuple[tuple[str, str], ...]) -> str:
    return "?" + urlencode(parameters, quote_via=quote)
