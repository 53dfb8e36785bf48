"""Shows the steps of an action that takes longer than a moment, on standard error."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_BAR: Final = 20  # characters
_SLOW: Final = 1.0  # seconds after which waiting is worth a message


class Progress:
    """One line for each step; in a terminal the next step replaces it."""

    def __init__(self, *, in_terminal_only: bool = False) -> None:
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()
        self._is_shown = self._is_terminal or not in_terminal_only
        self._last = ""  # of ``bar``

    def step(self, text: str) -> None:
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{text} ...")
        elif self._is_shown:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def bar(self, done: int, total: int, text: str) -> None:
        """Show how much of a known amount is done; in a file or pipe, only each change."""
        if self._is_terminal:
            filled = _BAR * min(done, total) // total if total else _BAR
            text = f"[{'#' * filled}{'.' * (_BAR - filled)}] {text}"
        if text != self._last:
            self._last = text
            self.step(text)

    def clear(self) -> None:
        """Remove the line of the last step from a terminal."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@contextmanager
def said_if_slow(say: Callable[[str], None], text: str) -> Iterator[None]:
    """Say ``text`` if the block, which runs in an event loop, takes longer than a second."""
    waiting = asyncio.get_running_loop().call_later(_SLOW, say, text)
    try:
        yield
    finally:
        waiting.cancel()


@contextmanager
def steps(*, in_terminal_only: bool = False) -> Iterator[Progress]:
    """Show steps for the length of the block; none of them stays in the terminal."""
    progress = Progress(in_terminal_only=in_terminal_only)
    try:
        yield progress
    finally:
        progress.clear()
