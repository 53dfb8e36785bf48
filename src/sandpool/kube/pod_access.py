"""Access to running pods: exec, attach, port-forward and logs. The node that runs the pods implements it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from sandpool.api.resource import Object, SharedObject

#: Seconds to wait before a port of a pod that refuses connections is dialled again, once for each retry: a pod can be
#: ready before its program listens.
RETRY_DELAYS: Final = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)


class Size(NamedTuple):
    """Terminal size."""

    columns: int
    rows: int


class StreamClient(Protocol):
    """The client side of an exec or attach session."""

    @property
    def has_stdin(self) -> bool: ...

    @property
    def has_stdout(self) -> bool: ...

    @property
    def has_stderr(self) -> bool: ...

    @property
    def is_terminal(self) -> bool: ...

    async def receive(self) -> bytes:
        """Bytes of standard input; empty at its end."""
        ...

    async def write(self, data: bytes, *, error: bool = False) -> None:
        """Write to standard output or error. Waits while the client does not read."""
        ...

    async def next_size(self) -> Size | None:
        """The next size of the client's terminal; None after the last."""
        ...


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The requested part of a container's log. Times are seconds since the epoch."""

    container: str
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: float | None = None
    tail: int | None = None  # lines
    limit: int | None = None  # bytes


class PodAccessError(Exception):
    """The pod cannot serve this request now; the message is for the client."""


class PodAsleep(PodAccessError):
    """The pod is being deleted because its sandbox falls asleep. Another pod takes over when the sandbox resumes."""


class PodAccess(Protocol):
    """``pod`` is the stored object. Methods raise ``PodAccessError`` if no such pod runs here."""

    def serves(self, pod: SharedObject) -> bool:
        """Whether this implementation is responsible for the pod, running or not."""
        ...

    async def execute(self, pod: SharedObject, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        """Run a command and return its exit code. The command is killed if the client disconnects."""
        ...

    async def attach(self, pod: SharedObject, container: str, client: StreamClient) -> int:
        """Attach to the container's main process until it ends or the client disconnects; returns its exit code."""
        ...

    async def dial(self, pod: SharedObject, port: int, user: Object) -> socket.socket:
        """A connected, non-blocking socket to a port of the pod. The API server has authorized ``user``, given as in a
        TokenReview, to forward ports of this pod. Raises ``OSError``."""
        ...

    def logs(self, pod: SharedObject, query: LogQuery) -> AsyncIterator[bytes]: ...

    async def stats(self, node: str) -> Object | None:
        """CPU time and memory of the running pods of a node, as a kubelet's ``/stats/summary``; None if the node is
        another one."""
        ...
