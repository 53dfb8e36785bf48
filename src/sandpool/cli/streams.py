"""Standard streams of this process: the little that needs no event loop.

Imports nothing that takes time, because the fast way of ``sandpool run`` uses it too (``cli.run_client``).
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STDIN, STDOUT, STDERR = 0, 1, 2
#: Bytes that are read from standard input at once, and how many such pieces are read ahead of the command.
PIECE = 1 << 15
READ_AHEAD = 4


def is_terminal() -> bool:
    """Whether standard input and output are a terminal."""
    return os.isatty(STDIN) and os.isatty(STDOUT)


def has_piped_input() -> bool:
    """Whether standard input is a pipe, a file or a socket, and not a terminal or ``/dev/null``."""
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:
        return False  # closed
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def read_input() -> bytes:
    """The next piece of standard input; empty at its end, also if it cannot be read."""
    try:
        return os.read(STDIN, PIECE)
    except OSError:
        return b""


def write(descriptor: int, data: bytes) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def terminal_size() -> tuple[int, int] | None:
    """Columns and rows of the terminal; None without one."""
    try:
        columns, rows = os.get_terminal_size(STDIN if os.isatty(STDIN) else STDERR)
    except OSError:
        return None
    return columns, rows


class RawTerminal:
    """Passes every key to the command, Ctrl-C included, until ``restore``. Without a terminal it does nothing."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        if os.isatty(STDIN):
            import termios
            import tty

            self._before = termios.tcgetattr(STDIN)
            tty.setraw(STDIN, termios.TCSADRAIN)  # keys that were typed ahead are kept

    def restore(self) -> None:
        """Set the terminal back. May be called again."""
        if self._before is not None:
            import termios

            before, self._before = self._before, None
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
