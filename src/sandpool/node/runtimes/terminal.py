"""Terminals for containers and commands."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import NamedTuple


class Terminal(NamedTuple):
    ours: int  # what is written here is typed there
    theirs: int


def open_terminal(uid: int, gid: int, rows: int = 24, columns: int = 80) -> Terminal:
    """A new terminal that belongs to a sandbox. Closing both ends is up to the caller."""
    ours, theirs = os.openpty()
    os.fchown(theirs, uid, gid)
    resize(ours, rows, columns)
    return Terminal(ours, theirs)


def resize(descriptor: int, rows: int, columns: int) -> None:
    """Programs in it are told by SIGWINCH."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
