"""The clients of one pod: how many are connected, and when the last one came or left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandpool.engine.clock import Clock
from sandpool.kube.pod_access import PodAsleep


class ClientActivity:
    """Exec, attach and port-forward count for as long as they last. A connection that is passed on to the router counts
    as one moment: the router knows of the requests on it (``sleep.requests``)."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.connected = 0
        self.last = clock.monotonic()
        # While the sandbox of the pod is being suspended, and after that. The result is whether it was.
        self._suspending: asyncio.Future[bool] | None = None

    @property
    def is_suspending(self) -> bool:
        return self._suspending is not None

    @property
    def is_suspended(self) -> bool:
        """Whether the pod will be deleted because its sandbox was suspended."""
        return self._suspending is not None and self._suspending.done()

    def stays(self) -> None:
        """The sandbox was resumed before its pod was deleted."""
        self._suspending = None

    def begin_suspending(self) -> None:
        """From now on clients wait (``check_stays``)."""
        self._suspending = asyncio.get_running_loop().create_future()

    def end_suspending(self, suspended: bool) -> None:
        """The sandbox is suspended, and this pod will be deleted; or it is not, and clients go on."""
        assert self._suspending is not None
        self._suspending.set_result(suspended)
        if not suspended:
            self._suspending = None

    async def check_stays(self) -> None:
        """Return once it is certain that the pod is not deleted because its sandbox falls asleep. Raises
        ``PodAsleep``."""
        if self._suspending is not None and await asyncio.shield(self._suspending):
            raise PodAsleep("the sandbox falls asleep at this moment")

    def touch(self) -> None:
        """A client uses the pod at this moment."""
        self.last = self.clock.monotonic()

    @contextmanager
    def client(self) -> Iterator[None]:
        """Count a client for the length of the block."""
        self.arrived()
        try:
            yield
        finally:
            self.left()

    def arrived(self) -> None:
        self.connected += 1
        self.touch()

    def left(self) -> None:
        self.connected -= 1
        self.touch()

    def counted(self, connected: socket.socket) -> socket.socket:
        """Return the connection as one that counts as a client until it is closed."""
        self.arrived()
        return _CountedSocket(connected, self.left)


class _CountedSocket(socket.socket):
    """A socket that calls back, once, when it is closed or gives its descriptor away. uvloop ends a connection that it
    was given in the second way: it closes the descriptor itself."""

    def __init__(self, connected: socket.socket, closed: Callable[[], None]) -> None:
        super().__init__(connected.family, connected.type, connected.proto, fileno=connected.detach())
        self.setblocking(False)
        self._closed_callback: Callable[[], None] | None = closed

    def close(self) -> None:
        super().close()
        self._left()

    def detach(self) -> int:
        descriptor = super().detach()
        self._left()
        return descriptor

    def _left(self) -> None:
        callback, self._closed_callback = self._closed_callback, None
        if callback is not None:
            callback()
