"""Terminals for containers and commands.

Every container has its own terminals at /dev/pts. A terminal opened there has a name inside, which some programs look
up and open again. A terminal of the host works as well, but has no name inside.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
from typing import Final, NamedTuple

from sandpool.node.launcher import syscalls

_PTMX: Final = os.makedev(5, 2)
_TIOCSPTLCK: Final = 0x40045431
_TIOCGPTPEER: Final = 0x5441
_FLAGS: Final = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC


class Terminal(NamedTuple):
    ours: int  # the master: input for the container is written here
    theirs: int


def open_terminal(uid: int, gid: int, rows: int = 24, columns: int = 80) -> Terminal:
    """Open a terminal of the host that belongs to a sandbox. The caller closes both ends."""
    return _prepared(Terminal(*os.openpty()), uid, gid, rows, columns)


def open_terminal_inside(pid: int, uid: int, gid: int, rows: int = 24, columns: int = 80) -> Terminal:
    """Open a terminal of the container that a process is in. Raises OSError if the container has none."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        device = syscalls.open_within(root, "/dev/pts/ptmx")
    finally:
        os.close(root)
    try:
        # Do not open anything else that the container may have put there.
        found = os.fstat(device)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _PTMX:
            raise FileNotFoundError("the container has no terminals")
        ours = os.open(f"/proc/self/fd/{device}", _FLAGS)
    finally:
        os.close(device)
    try:
        fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
        theirs = fcntl.ioctl(ours, _TIOCGPTPEER, _FLAGS)
    except BaseException:
        os.close(ours)
        raise
    return _prepared(Terminal(ours, theirs), uid, gid, rows, columns)


def resize(descriptor: int, rows: int, columns: int) -> None:
    """Set the window size. Programs in the terminal get SIGWINCH."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _prepared(terminal: Terminal, uid: int, gid: int, rows: int, columns: int) -> Terminal:
    try:
        os.fchown(terminal.theirs, uid, gid)
        resize(terminal.ours, rows, columns)
    except BaseException:
        for descriptor in terminal:
            os.close(descriptor)
        raise
    return terminal
