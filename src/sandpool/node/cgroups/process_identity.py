"""Identity of a process without a cgroup: its PID and start time, recorded in a file."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

#: The file of a cgroup that lists its processes and to which a process writes to join.
CGROUP_PROCS: Final = "cgroup.procs"
#: The file in which a process records itself to join a group; see ``pid_namespace_groups``.
MEMBERS_FILE: Final = "members"
#: The index of the start time in ``proc_stat``.
START_TIME: Final = 19


def start_time(pid: int) -> int | None:
    """The start time of a process in ticks since boot; None if it has ended. PIDs are reused; a PID together with its
    start time is unique."""
    fields = proc_stat(pid)
    return int(fields[START_TIME]) if fields else None


def boot_ticks() -> int:
    """Now, in the unit of ``start_time``."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def proc_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if the process has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def append_member(file: str, pid: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(descriptor, b"%d %d\n" % (pid, start_time(pid) or 0))
    os.close(descriptor)
