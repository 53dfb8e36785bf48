"""Files that a parent opens for a confined child, which asks for them over a socket pair.

A log that rotates is another file after a while, so its descriptor cannot be passed once. The child names nothing: it
gets the files that the parent lists, opened for reading.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

_MAX_FILES: Final = 16
_MAX_TEXT: Final = 1024
_SECONDS: Final = 10.0
_REQUEST: Final = b"open"


class FileServer:
    """The parent's end. ``paths`` lists the files; of more than 16 the last ones are opened."""

    def __init__(self, paths: Callable[[], Sequence[Path]]) -> None:
        self.paths = paths
        self._connections: set[socket.socket] = set()

    def connect(self) -> socket.socket:
        """Return the end of a new child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._connections.add(ours)
        asyncio.get_running_loop().add_reader(ours, self._receive, ours)
        return theirs

    def close(self) -> None:
        for connection in list(self._connections):
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        self._connections.discard(connection)
        connection.close()

    def _receive(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(len(_REQUEST) + 1)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        try:
            if request == _REQUEST:
                self._answer(connection)
                return
        except OSError:
            pass  # a child that asks without reading the answers gets no more
        self._close(connection)

    def _answer(self, connection: socket.socket) -> None:
        with ExitStack() as stack:
            try:
                files = [stack.enter_context(path.open("rb")) for path in self.paths()[-_MAX_FILES:]]
            except OSError as error:
                connection.send(str(error).encode(errors="replace")[:_MAX_TEXT] or b"?")
                return
            socket.send_fds(connection, [b"\0"], [file.fileno() for file in files])


class HandedFiles:
    """The child's end. Threads may share it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._turn = threading.Lock()
        connection.settimeout(_SECONDS)

    def lines(self) -> Iterator[bytes]:
        """All lines of the files as they are now. Raises ``OSError``."""
        with ExitStack() as stack:
            for file in [stack.enter_context(each) for each in self._open()]:
                yield from file

    def _open(self) -> list[BinaryIO]:
        with self._turn:
            self.connection.send(_REQUEST)
            answer, descriptors, _, _ = socket.recv_fds(self.connection, _MAX_TEXT, _MAX_FILES)
        if not answer:
            raise ConnectionResetError("the process that opens files is gone")
        if answer != b"\0":
            raise OSError(answer.decode(errors="replace"))
        return [os.fdopen(each, "rb") for each in descriptors]
