"""The way into running pods, as the API server needs it. Whoever runs the pods provides it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sandpool.api.resource import Object


class Size(NamedTuple):
    """Of a terminal."""

    columns: int
    rows: int


class StreamClient(Protocol):
    """A client at the other end of a command: what it types, and where it reads."""

    @property
    def has_stdin(self) -> bool: ...

    @property
    def has_stdout(self) -> bool: ...

    @property
    def has_stderr(self) -> bool: ...

    @property
    def is_terminal(self) -> bool: ...

    async def receive(self) -> bytes:
        """From standard input; nothing at its end."""
        ...

    async def write(self, data: bytes, *, error: bool = False) -> None:
        """To standard output, or error. Waits while the client does not read."""
        ...

    async def next_size(self) -> Size | None:
        """The next size of the client's terminal; None when there will be no other."""
        ...


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What part of a container's log is wanted. Times are seconds since the epoch."""

    container: str
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: float | None = None
    tail: int | None = None  # lines
    limit: int | None = None  # bytes


class PodAccessError(Exception):
    """What was asked cannot be done with this pod now; the message is for the client."""


class PodAccess(Protocol):
    """``pod`` is the object as it is stored; the door knows which running pod that is, or raises ``PodAccessError``."""

    def leads_to(self, pod: Object) -> bool:
        """Whether the pod is one of those behind this door, if it runs at all."""
        ...

    async def execute(self, pod: Object, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        """Run a command to its end and return its exit code. If the client goes, so does the command."""
        ...

    async def attach(self, pod: Object, container: str, client: StreamClient) -> int:
        """Be the terminal of the container's own process until it ends or the client goes; its exit code."""
        ...

    async def dial(self, pod: Object, port: int) -> socket.socket:
        """A connected, non-blocking socket to a port of the pod. Raises ``OSError``."""
        ...

    def logs(self, pod: Object, query: LogQuery) -> AsyncIterator[bytes]: ...
