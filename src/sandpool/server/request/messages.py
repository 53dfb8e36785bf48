"""One request to the API server and its answer, whatever carried them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from sandpool.kube.transport import JSON
from sandpool.server.streams.byte_stream import ByteStream


@dataclass(frozen=True, slots=True)
class User:
    """Who is asking, as authentication established it."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class ServerRequest:
    method: str
    path: str  # percent-encoded, without the query
    user: User
    query: Mapping[str, str] = field(default_factory=dict)  # decoded; of a repeated parameter the first value
    raw_query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    body: bytes = b""
    # The decoded body of an in-process request, which never was bytes. Takes precedence over ``body``.
    object: Any = None
    source: str = ""  # address of the peer, for the audit log
    # A patch of a custom resource's status keeps the labels and annotations of the body. Only the in-process transport
    # can set it: over the network, permission to write a status must not extend to metadata.
    with_metadata: bool = False


@dataclass(slots=True)
class WatchLine:
    """One event of a watch, encoded once and shared by every stream that carries it."""

    type: str
    object: Any  # decoded, or None if only ``encoded`` is at hand
    encoded: bytes  # the object as JSON
    _line: bytes = b""

    def line(self) -> bytes:
        if not self._line:
            self._line = b'{"type":"' + self.type.encode() + b'","object":' + self.encoded + b"}\n"
        return self._line

    def decode(self) -> Any:
        return self.object if self.object is not None else orjson.loads(self.encoded)


class WatchStream:
    """The events of a watch: lists of lines as they become available, until the server or ``end`` ends it.

    Whoever iterates closes it (``aclose``); ``end`` may be called by anybody and makes the iteration finish.
    """

    def __init__(self, lines: AsyncGenerator[list[WatchLine], None], end: Callable[[], None]) -> None:
        self._lines = lines
        self.end = end

    def __aiter__(self) -> AsyncGenerator[list[WatchLine], None]:
        return self._lines

    async def aclose(self) -> None:
        self.end()
        await self._lines.aclose()


@dataclass(frozen=True, slots=True)
class Upgrade:
    """From here on the connection speaks something else: ``run`` does, until it is over. What the client is told is in
    the headers of the answer. ``abandon`` is called instead if the client is gone by then."""

    run: Callable[[ByteStream], Awaitable[None]]
    abandon: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Response:
    """The answer: a JSON object (decoded, encoded or both), a stream of watch lines, or the end of HTTP."""

    status: int = 200
    object: Any = None
    encoded: bytes | None = None
    content_type: str = JSON
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: WatchStream | None = None
    upgrade: Upgrade | None = None

    def encode(self) -> bytes:
        if self.encoded is None:
            self.encoded = orjson.dumps(self.object)
        return self.encoded

    def decode(self) -> Any:
        if self.object is None and self.encoded is not None:
            self.object = orjson.loads(self.encoded)
        return self.object
