"""A request to the API server and its response, independent of the transport."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.errors import ApiError
from sandpool.kube.transport import JSON
from sandpool.server.request.request_info import RequestInfo


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request, as established by authentication."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class ServerRequest:
    method: str
    path: str  # percent-encoded, without the query
    user: User
    query: Mapping[str, str] = field(default_factory=dict)  # decoded; the first value of a repeated parameter
    raw_query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    body: bytes = b""
    # The decoded body of an in-process request. Takes precedence over ``body``.
    object: Any = None
    source: str = ""  # address of the peer, for the audit log
    # A patch of a custom resource's status keeps the labels and annotations of the body. Only the in-process transport
    # can set it: over the network, permission to write a status must not extend to metadata.
    with_metadata: bool = False
    # Why this user may not create the object, if an update or patch does not find it. None: not yet authorized.
    create_refusal: ApiError | None = None
    info: RequestInfo | None = None  # if it is known without parsing the path
    # Large work on this request may run in a thread. Clients in this process know what they ask for.
    offloadable: bool = False


LINE_END = b"}\n"


@dataclass(slots=True)
class WatchLine:
    """One event of a watch, encoded once and shared by all streams that send it."""

    type: str
    object: Any  # decoded, or None if there is only ``encoded``
    encoded: bytes  # the object as JSON
    _line: bytes = b""

    def line(self) -> bytes:
        if not self._line:
            self._line = self.start() + self.encoded + LINE_END
        return self._line

    def start(self) -> bytes:
        """The part of the line before the object. ``LINE_END`` follows the object."""
        return b'{"type":"' + self.type.encode() + b'","object":'

    def decode(self) -> Any:
        if self.object is None:
            self.object = orjson.loads(self.encoded)
        return self.object


class WatchStream:
    """The events of a watch, in batches, until the server or ``end`` ends the stream.

    The consumer must call ``aclose``. ``end`` may be called from anywhere and makes the iteration finish.
    ``holds_states`` tells whether the stream still holds objects of the store as they were when it began.
    """

    def __init__(
        self,
        lines: AsyncGenerator[list[WatchLine], None],
        end: Callable[[], None],
        holds_states: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lines = lines
        self.end = end
        self.holds_states = holds_states

    def __aiter__(self) -> AsyncGenerator[list[WatchLine], None]:
        return self._lines

    async def aclose(self) -> None:
        self.end()
        await self._lines.aclose()


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A protocol switch: ``run`` owns the connection from here on. The headers of the response name the protocol.
    ``abandon`` is called instead if the client has disconnected."""

    run: Callable[[ByteStream], Awaitable[None]]
    abandon: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Response:
    """The response: a JSON object (decoded, encoded or both), a stream of watch lines, or a protocol switch.

    ``parts`` are consecutive pieces of a large encoded object, which are not joined unless a client in this process
    needs that.
    """

    status: int = 200
    object: Any = None
    encoded: bytes | None = None
    parts: list[bytes | memoryview] | None = None
    content_type: str = JSON
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: WatchStream | None = None
    upgrade: Upgrade | None = None

    def encode(self) -> bytes:
        if self.encoded is None:
            self.encoded = orjson.dumps(self.object) if self.parts is None else b"".join(self.parts)
        return self.encoded

    @property
    def size(self) -> int:
        """Bytes of the encoded object."""
        return len(self.encode()) if self.parts is None else sum(map(len, self.parts))

    def decode(self) -> Any:
        if self.object is None and (self.encoded is not None or self.parts is not None):
            self.object = orjson.loads(self.encode())
        return self.object
