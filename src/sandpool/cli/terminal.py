"""The user's terminal and pipes as the standard streams of a command in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from sandpool.kube.pod_client import STDERR
from sandpool.service.commands import RunningCommand

_PIECE: Final = 1 << 15
_STDIN, _STDOUT, _STDERR = 0, 1, 2


def is_terminal() -> bool:
    """Whether standard input and output are a terminal."""
    return os.isatty(_STDIN) and os.isatty(_STDOUT)


def has_piped_input() -> bool:
    """Whether standard input is a pipe, a file or a socket, and not a terminal or ``/dev/null``."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:
        return False  # closed
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


async def converse(running: RunningCommand, *, stdin: bool, tty: bool) -> int:
    """Connect this process's standard streams to the command until it ends; returns its exit code."""
    with _raw_mode(tty):
        helpers = [asyncio.create_task(_feed(running))] if stdin else []
        if tty:
            helpers.append(asyncio.create_task(_follow_size(running)))
        try:
            async for piece in running.output():
                _write(_STDERR if piece.stream == STDERR else _STDOUT, piece.data)
            return await running.wait()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def _raw_mode(tty: bool) -> Iterator[None]:
    """Pass every key to the command, Ctrl-C included; the terminal is restored in any case."""
    if not tty or not os.isatty(_STDIN):
        yield
        return
    import termios
    import tty as terminals

    before = termios.tcgetattr(_STDIN)
    try:
        terminals.setraw(_STDIN, termios.TCSADRAIN)  # keys that were typed ahead are kept
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


async def _feed(running: RunningCommand) -> None:
    async for piece in _read_stdin():
        await running.send(piece)
    await running.end_input()


async def _read_stdin() -> AsyncIterator[bytes]:
    """Read standard input in a thread: it may be a regular file, which event loops cannot wait for. The thread is a
    daemon, because a read from a terminal cannot be cancelled."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(4)  # pieces that are read ahead

    def read() -> None:
        while True:
            wanted.acquire()
            try:
                piece = os.read(_STDIN, _PIECE)
            except OSError:
                piece = b""
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:
                return  # the loop is closed
            if not piece:
                return

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while piece := await pieces.get():
        yield piece
        wanted.release()


async def _follow_size(running: RunningCommand) -> None:
    """Send the size of the terminal, now and after every change."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    changed.set()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            columns, rows = os.get_terminal_size(_STDIN if os.isatty(_STDIN) else sys.stderr.fileno())
            await running.resize(columns, rows)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
