"""Shows the steps of a long action on standard error; in a terminal also a bar or how long it takes."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from sandpool.cli import streams

_BAR: Final = 20  # characters
_SLOW: Final = 1.0  # seconds after which waiting is worth a message
_SECOND: Final = 1.0  # between two looks at the clock
_CLEAR: Final = "\r\x1b[K"
_COLUMNS: Final = 80  # of a terminal that does not say it


class Progress:
    """One line for each step; in a terminal the next step replaces it, and ``ticking`` adds the elapsed time.

    ``is_terminal`` and ``write`` are those of standard error unless they are given."""

    def __init__(
        self,
        *,
        in_terminal_only: bool = False,
        is_terminal: bool | None = None,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self.is_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._write = write or _to_standard_error(sys.stderr)
        size = None if write else streams.terminal_size()
        self._columns = size[0] if size and size[0] else _COLUMNS
        self._is_shown = self.is_terminal or not in_terminal_only
        self._last = ""  # of ``bar``
        self._line = ""  # what the terminal shows
        self._elapsed = ""
        self._lock = threading.Lock()  # the thread of ``ticking`` shows the line too

    def step(self, text: str) -> None:
        with self._lock:
            if self.is_terminal:
                self._line = f"{text} ..."
                self._draw()
            elif self._is_shown:
                self._write(f"{text}\n")

    def bar(self, done: int, total: int, text: str) -> None:
        """Show how much of a known amount is done; in a file or pipe, only each change."""
        if self.is_terminal:
            filled = _BAR * min(done, total) // total if total else _BAR
            text = f"[{'#' * filled}{'.' * (_BAR - filled)}] {text}"
        if text != self._last:
            self._last = text
            self.step(text)

    def show(self, text: str, write: Callable[[str], object] | None = None) -> None:
        """Show a line that stays, above the one of the current step; with ``write`` if it is not for standard error."""
        with self._lock:
            if self._line:
                self._write(_CLEAR)
            if write is None:
                self._write(f"{text}\n")
            else:
                write(text)
            if self._line:
                self._draw()

    def tick(self, seconds: float) -> None:
        """Show in a terminal how long the action has taken."""
        with self._lock:
            self._elapsed = f" {seconds:.0f} s"
            if self._line:
                self._draw()

    def clear(self) -> None:
        """Remove the line of the last step from a terminal."""
        with self._lock:
            if self._line:
                self._line = ""
                self._write(_CLEAR)

    def _draw(self) -> None:
        # A line that is longer than the terminal could not be replaced by the next one.
        line = self._line[: max(self._columns - 1 - len(self._elapsed), 0)]
        self._write(f"{_CLEAR}{line}{self._elapsed}")

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Show in a terminal how long the block takes, once a second, whatever the thread of the caller does."""
        if not self.is_terminal:
            yield
            return
        ended = threading.Event()

        def count() -> None:
            began = time.monotonic()
            while not ended.wait(_SECOND):
                self.tick(time.monotonic() - began)

        thread = threading.Thread(target=count, name="elapsed time", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _to_standard_error(stream: TextIO) -> Callable[[str], None]:
    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    return write


@contextmanager
def line_if_slow(show: Callable[[str], None], text: str) -> Iterator[None]:
    """Show ``text`` if the block, which runs in an event loop, takes longer than a second."""
    waiting = asyncio.get_running_loop().call_later(_SLOW, show, text)
    try:
        yield
    finally:
        waiting.cancel()


@contextmanager
def steps(*, in_terminal_only: bool = False) -> Iterator[Progress]:
    """Show steps for the length of the block; none of them stays in the terminal."""
    progress = Progress(in_terminal_only=in_terminal_only)
    try:
        with progress.ticking():
            yield progress
    finally:
        progress.clear()


@contextmanager
def shown_if_slow(progress: Progress, text: str) -> Iterator[None]:
    """Show ``text`` and the elapsed time if the block, which runs in an event loop, takes longer than a second; in a
    file or pipe only ``text``, once, and nothing if ``progress`` is for a terminal alone."""
    if not progress.is_terminal:
        with line_if_slow(progress.step, f"{text} ..."):
            yield
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    next_time: asyncio.TimerHandle

    def show() -> None:
        nonlocal next_time
        progress.tick(loop.time() - began)
        progress.step(text)
        next_time = loop.call_later(_SECOND, show)

    next_time = loop.call_later(_SLOW, show)
    try:
        yield
    finally:
        next_time.cancel()
        progress.clear()
