"""Captures an output stream of a command: keeps its first bytes, and counts the rest.

The stream is a pipe, and this process reads it while the command runs. A command with endless output therefore costs
the sandbox no more memory than the limit. A background process that the command leaves behind still has the pipe open.
Closing the read end would kill that process at its next write (SIGPIPE), so a thread reads and discards what it writes.
"""

from __future__ import annotations

import os
import select
from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_VARIABLE = "SANDBOX_MAX_OUTPUT_BYTES"
DEFAULT_LIMIT = 1 << 20
_READ_BYTES = 1 << 16
# Largest capacity of a pipe (fs.pipe-max-size): no more can be left in it when the command has ended.
_MAX_PIPE_BYTES = 1 << 20
_MAX_DISCARDED_STREAMS = 256


def output_limit(environment: Mapping[str, str]) -> int:
    """Return the configured limit of each stream; anything but a positive number gives the default."""
    text = environment.get(LIMIT_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else DEFAULT_LIMIT


class CapturedOutput:
    """One stream. The caller passes ``writer`` to the command, calls ``read`` when ``reader`` is readable, and
    ``finish`` after the end of the command."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._kept: list[bytes] = []

    @property
    def content(self) -> bytes:
        """The first ``limit`` bytes."""
        return b"".join(self._kept)

    def read(self) -> bool:
        """Read what is available, at most one piece. Return False if there is nothing to read, now or ever."""
        try:
            data = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return False
        left = self.limit - self.size
        if left > 0:
            self._kept.append(data[:left])
        self.size += len(data)
        return bool(data)

    def close_writer(self) -> None:
        """Close the end of the command in this process. Idempotent."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def finish(self) -> None:
        """Read what the command wrote before its end, then let go of the pipe."""
        self.close_writer()
        last = self.size + _MAX_PIPE_BYTES
        while self.size < last and self.read():
            pass
        _discarder.add(self.reader)


class _Discarder:
    """Reads and discards, in one thread, the output of background processes."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._poll: select.epoll | None = None
        self._streams = 0

    def add(self, reader: int) -> None:
        """Take over the read end of a pipe and close it when no process has the other end open."""
        poll = select.poll()
        poll.register(reader, 0)
        if poll.poll(0):  # POLLHUP: no process is left that could write
            os.close(reader)
            return
        with self._lock:
            if self._streams == _MAX_DISCARDED_STREAMS:
                os.close(reader)
                return
            if self._poll is None:
                self._poll = select.epoll()
                start_new_thread(self._discard, (self._poll,))
            self._streams += 1
            self._poll.register(reader, select.EPOLLIN)

    def _discard(self, poll: select.epoll) -> None:
        while True:
            for reader, _ in poll.poll():
                try:
                    if os.read(reader, _READ_BYTES):
                        continue
                except BlockingIOError:
                    continue
                # close() alone keeps it registered while a process between fork() and exec() has a copy of it.
                poll.unregister(reader)
                os.close(reader)
                with self._lock:
                    self._streams -= 1


_discarder = _Discarder()
