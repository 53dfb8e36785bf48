"""Interactive processes: streamed output, standard input, signals and terminals."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sandpool.sandboxd import commands

_PIECE = 4096
_POLL_MILLISECONDS = 250  # between checks that the client is still connected
_END_OF_INPUT = b"\x04"
# A session leader that opens a terminal gets it as its controlling terminal. The alternative, an ioctl after fork(),
# would run Python code in a process forked from one with threads.
_WITH_TERMINAL = 'tty=$1; shift; exec 0<>"$tty" 1>&0 2>&0; exec "$@"'


class UnknownProcess(Exception):
    """The process does not exist, or has ended."""


class NoTerminal(Exception):
    """The process has no terminal."""


class Piece(NamedTuple):
    data: bytes
    error: bool = False  # from standard error


class Process:
    """A running process. A caller must read ``output`` to its end; closing the iterator early kills the process."""

    def __init__(
        self, argv: Sequence[str], cwd: int, env: Mapping[str, str], size: tuple[int, int] | None = None
    ) -> None:
        self.terminal: int | None = None
        self._input: int | None = None
        self._outputs: dict[int, bool] = {}  # descriptor -> is it standard error
        self._lock = threading.Lock()  # guards the input, which other threads use than the one that reads output
        theirs: list[int] = []
        try:
            if size is None:
                self._popen = self._with_pipes(argv, cwd, env, theirs)
            else:
                self._popen = self._with_terminal(argv, cwd, env, size, theirs)
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def output(self, is_wanted: Callable[[], bool]) -> Iterator[Piece]:
        """Yield output until the process ends. ``code`` is valid afterwards."""
        handle = os.pidfd_open(self._popen.pid)
        try:
            poll = select.poll()
            for descriptor in (handle, *self._outputs):
                poll.register(descriptor, select.POLLIN)
            reading = list(self._outputs)
            while True:
                ready = [descriptor for descriptor, _ in poll.poll(_POLL_MILLISECONDS)]
                if not is_wanted():
                    return
                # Output up to the end of the process is its own; later output is of other holders of the pipe.
                has_ended = handle in ready
                for descriptor in [each for each in reading if has_ended or each in ready]:
                    if not (yield from self._read(descriptor, drain=has_ended)):
                        reading.remove(descriptor)
                        poll.unregister(descriptor)
                if has_ended:
                    return
        finally:
            os.close(handle)
            self.end()

    @property
    def code(self) -> int:
        """Exit code; -1 if a signal ended the process."""
        return max(self._popen.returncode, -1)

    def write(self, data: bytes | None, is_wanted: Callable[[], bool]) -> None:
        """Write to standard input; None closes it."""
        with self._lock:
            if self._input is None:
                raise UnknownProcess("the standard input of the process is closed")
            if data is None and self.terminal is None:
                os.close(self._input)
                self._input = None
                return
            rest = _END_OF_INPUT if data is None else data
            poll = select.poll()
            poll.register(self._input, select.POLLOUT)
            while rest and is_wanted():
                if poll.poll(_POLL_MILLISECONDS):
                    with suppress(BlockingIOError):
                        rest = rest[os.write(self._input, rest) :]

    def signal(self, number: int) -> None:
        if self._popen.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)

    def resize(self, columns: int, rows: int) -> None:
        if self.terminal is None:
            raise NoTerminal
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> None:
        """Kill the process group if the process still runs, and close all descriptors. Idempotent."""
        if self._popen.poll() is None:
            commands.end_group(self._popen.pid)
            self._popen.wait()
        self._close()

    def _with_pipes(
        self, argv: Sequence[str], cwd: int, env: Mapping[str, str], theirs: list[int]
    ) -> subprocess.Popen[bytes]:
        reader, self._input = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._input, False)
        theirs.append(reader)
        for error in (False, True):
            ours, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
            self._outputs[ours] = error
            theirs.append(writer)
        return commands.start(argv, cwd, env, *theirs)

    def _with_terminal(
        self, argv: Sequence[str], cwd: int, env: Mapping[str, str], size: tuple[int, int], theirs: list[int]
    ) -> subprocess.Popen[bytes]:
        if shutil.which(argv[0], path=env.get("PATH")) is None:
            raise commands.NotStarted(f"{argv[0]} was not found") from FileNotFoundError(argv[0])
        self.terminal, slave = os.openpty()
        theirs.append(slave)
        self._input = self.terminal
        self._outputs[self.terminal] = False
        os.set_blocking(self.terminal, False)
        self.resize(*size)
        wrapped = ("/bin/sh", "-c", _WITH_TERMINAL, "sh", os.ttyname(slave), *argv)
        return commands.start(wrapped, cwd, env, subprocess.DEVNULL, slave, slave)

    def _read(self, descriptor: int, *, drain: bool) -> Generator[Piece, None, bool]:
        """Yield one piece, or with ``drain`` all that is available. Return False at the end of the stream."""
        while True:
            try:
                data = os.read(descriptor, _PIECE)
            except BlockingIOError:
                return True
            except OSError:
                return False  # EIO: no process has the terminal open any more
            if not data:
                return False
            yield Piece(data, self._outputs[descriptor])
            if not drain:
                return True

    def _close(self) -> None:
        with self._lock:
            for descriptor in {*self._outputs, *([] if self._input is None else [self._input])}:
                os.close(descriptor)
            self._outputs.clear()
            self._input = self.terminal = None


class Processes:
    """Running processes by the ID that clients use."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self._last = 0
        self._lock = threading.Lock()

    def add(self, process: Process) -> int:
        with self._lock:
            self._last += 1
            self._running[self._last] = process
            return self._last

    def remove(self, number: int) -> None:
        with self._lock:
            self._running.pop(number, None)

    def get(self, number: int) -> Process:
        with self._lock:
            if number not in self._running:
                raise UnknownProcess(f"there is no process {number}")
            return self._running[number]

    def all(self) -> list[Process]:
        with self._lock:
            return list(self._running.values())


SIGNALS = frozenset({signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
