"""Confinement of a process: to the descriptors that it has and will be given, or to those and to sockets of its own.

The process starts with the rights of its parent, because only then can it always read its own program: Python may be
installed in a home directory. After its imports, and before it reads a byte that others wrote, it becomes another user
without capabilities, and loads seccomp filters that refuse to open files, to make sockets or connections, to start
programs and to reach other processes. A server that connects to the API itself may make sockets and nothing else of
that. The filters hold for a process that stays the same user, too: a Sandpool that root did not start has no other user
to become.
"""

from __future__ import annotations

import importlib
import logging
import mimetypes
import os
import pwd
import resource
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from sandpool.node.launcher import syscalls
from sandpool.node.runtimes import seccomp

_log = logging.getLogger(__name__)

# The users of confined children, below those of pods. No file belongs to it, and no account of the machine has it.
_LAST_USER: Final = 199_999
_FIRST_USER: Final = 199_000
#: Which of these users a child gets: none has the files, or counts against the threads, of another.
ROUTER, DASHBOARD, E2B = range(3)
# Threads of a confined process; the kernel counts those of all processes of its user.
_MAX_THREADS: Final = 256
# If the machine runs out of memory, the kernel kills sandboxes first (500), then these processes, then their parent.
_OOM_SCORE_ADJ: Final = 400
# Modules that others import when they first need them.
_IMPORTED_LATE: Final = (
    *("_strptime", "concurrent.futures.thread", "encodings.ascii", "encodings.idna", "encodings.latin_1"),
    *("email.utils", "ipaddress"),
)


class HostUser(NamedTuple):
    uid: int
    gid: int


def unprivileged_user(child: int = ROUTER) -> HostUser:
    """Return the user for a confined child: one that has no account if this process is root, else its own."""
    if os.geteuid() != 0:
        return HostUser(os.geteuid(), os.getegid())
    for uid in range(_LAST_USER, _FIRST_USER, -1):
        try:
            pwd.getpwuid(uid)
        except KeyError:
            if child == 0:
                return HostUser(uid, uid)
            child -= 1
    raise OSError(f"too many users from {_FIRST_USER} to {_LAST_USER} have accounts")


def import_late_modules(names: Iterable[str] = ()) -> None:
    """Import ``names``, and the modules that others import when they first need them: a confined process reads no
    files."""
    for name in (*_IMPORTED_LATE, *names):
        importlib.import_module(name)
    mimetypes.init()  # reads the tables of the machine


def confine(user: HostUser, restriction: Callable[[], bytes] = seccomp.relay_program) -> None:
    """Give up all privileges of this process, permanently. ``restriction`` is the filter that is loaded besides that of
    sandboxes. Raises ``OSError``, or ``NoFilter`` on architectures without a filter. The process must have one thread,
    because a filter applies to the calling thread and to later ones."""
    if threading.active_count() != 1:
        raise OSError("a process with several threads cannot be confined")
    filters = seccomp.program(), restriction()  # read while files can be opened
    time.tzset()  # likewise: the log has local times
    time.localtime()
    _be_killed_before_parent()
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if os.geteuid() == 0:
        # The bounding set can only be emptied by a process that has a capability: before it changes its user.
        syscalls.drop_bounding_set()
        _become(user)
    syscalls.drop_capabilities()
    syscalls.hide()  # a change of user may make the process dumpable
    syscalls.kill_with_parent()
    syscalls.no_new_privileges()
    for program in filters:
        syscalls.filter_system_calls(program)


def _be_killed_before_parent() -> None:
    file = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        if int(file.read_text()) < _OOM_SCORE_ADJ:
            file.write_text(str(_OOM_SCORE_ADJ))


def _become(user: HostUser) -> None:
    """Change the user. A root without the capability, or in a user namespace that does not have the user, stays root:
    without capabilities, and with filters that refuse to open files."""
    try:
        os.setgroups([])
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        _log.warning("this process stays root, without its capabilities: cannot become user %d: %s", user.uid, error)
    else:
        resource.setrlimit(resource.RLIMIT_NPROC, (_MAX_THREADS, _MAX_THREADS))


def limit_open_files(most: int) -> None:
    """Lower the limit of open files to ``most``, if it is higher."""
    with suppress(ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
