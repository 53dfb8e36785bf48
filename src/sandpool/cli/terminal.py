"""The user's terminal and pipes as the standard streams of a command in a sandbox."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator

from sandpool.cli import streams
from sandpool.kube.pod_client import STDERR
from sandpool.service.commands import RunningCommand


async def converse(running: RunningCommand, *, stdin: bool, tty: bool) -> int:
    """Connect this process's standard streams to the command until it ends; returns its exit code."""
    terminal = streams.RawTerminal() if tty else None
    try:
        helpers = [asyncio.create_task(_feed(running))] if stdin else []
        if tty:
            helpers.append(asyncio.create_task(_follow_size(running)))
        try:
            async for piece in running.output():
                streams.write(streams.STDERR if piece.stream == STDERR else streams.STDOUT, piece.data)
            return await running.wait()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
    finally:
        if terminal is not None:
            terminal.restore()


async def _feed(running: RunningCommand) -> None:
    async for piece in _read_stdin():
        await running.send(piece)
    await running.end_input()


async def _read_stdin() -> AsyncIterator[bytes]:
    """Read standard input in a thread: it may be a regular file, which event loops cannot wait for. The thread is a
    daemon, because a read from a terminal cannot be cancelled."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(streams.READ_AHEAD)

    def read() -> None:
        while True:
            wanted.acquire()
            piece = streams.read_input()
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
            if (size := streams.terminal_size()) is not None:
                await running.resize(*size)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
