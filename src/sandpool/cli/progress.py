"""Shows the steps of an action that takes longer than a moment, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """One line for each step; in a terminal the next step replaces it."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()

    def step(self, text: str) -> None:
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{text} ...")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line of the last step from a terminal."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@contextmanager
def steps() -> Iterator[Progress]:
    """Show steps for the length of the block; none of them stays in the terminal."""
    progress = Progress()
    try:
        yield progress
    finally:
        progress.clear()
