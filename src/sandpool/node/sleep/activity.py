"""The clients of one pod: how many are connected, and when the last one came or left."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandpool.engine.clock import Clock


class ClientActivity:
    """Exec, attach and port-forward count for as long as they last. A connection that is passed on to the router counts
    as one moment: the router knows of the requests on it (``sleep.requests``)."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.connected = 0
        self.last = clock.monotonic()

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
    """A socket that calls back, once, when it is closed."""

    def __init__(self, connected: socket.socket, closed: Callable[[], None]) -> None:
        super().__init__(connected.family, connected.type, connected.proto, fileno=connected.detach())
        self.setblocking(False)
        self._closed_callback: Callable[[], None] | None = closed

    def close(self) -> None:
        super().close()
        callback, self._closed_callback = self._closed_callback, None
        if callback is not None:
            callback()
