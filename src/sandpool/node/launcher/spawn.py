"""Start a program without copying the process that starts it.

A fork of a Python process costs a millisecond and more before its first instruction, and every page that the child
touches another fault. ``posix_spawn`` lends its memory to the child until that executes something. Python's own hides
the parts needed here where it was built against an old C library, so it is called directly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Final

_SET_DEFAULT_SIGNALS: Final = 0x04
_SET_SESSION: Final = 0x80
# More than what any C library keeps in its attributes and its actions, and in a set of signals.
_ROOM: Final = 1024

_libc = ctypes.CDLL(None)
_attributes = ctypes.create_string_buffer(_ROOM)
_libc.posix_spawnattr_init(_attributes)
_libc.posix_spawnattr_setflags(_attributes, ctypes.c_short(_SET_DEFAULT_SIGNALS | _SET_SESSION))
# All of them: also those that the C library keeps to itself, and would leave ignored.
_libc.posix_spawnattr_setsigdefault(_attributes, b"\xff" * _ROOM)
# Who opens a terminal as the first of a session, and not only inherits it, is controlled by it. That it is there as
# standard output is a way to name it; what it is opened as is closed before.
_take_terminal = ctypes.create_string_buffer(_ROOM)
_libc.posix_spawn_file_actions_init(_take_terminal)
_libc.posix_spawn_file_actions_addopen(_take_terminal, 0, b"/proc/self/fd/1", os.O_RDWR, 0)


def spawn(program: str, argv: Sequence[str], env: Mapping[str, str], *, terminal: bool) -> int:
    """The PID of a new session's first process, with every signal as a program expects it and with our descriptors,
    of which the first three are the ``terminal`` that shall control it. Raises OSError if it cannot be executed."""
    pid = ctypes.c_int()
    error: int = _libc.posix_spawn(
        ctypes.byref(pid),
        os.fsencode(program),
        _take_terminal if terminal else None,
        _attributes,
        _words(argv),
        _words([f"{name}={value}" for name, value in env.items()]),
    )
    if error:
        raise OSError(error, os.strerror(error), program)
    return pid.value


def _words(words: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)
