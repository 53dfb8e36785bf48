"""How a process is known for good where there are no cgroups: by its PID and when it began, written down."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

#: The file of a cgroup that lists who is in it, and into which who enters writes itself.
PROCESSES: Final = "cgroup.procs"
#: The file of a group into which who enters writes itself; see ``members``.
MEMBERS: Final = "members"


def start_time(pid: int) -> int | None:
    """When a process began, in ticks since the machine did: a PID may be somebody else's by now, both together not."""
    fields = proc_stat(pid)
    return int(fields[19]) if fields else None


def proc_stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; empty if it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def append_member(file: str, pid: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(descriptor, b"%d %d\n" % (pid, start_time(pid) or 0))
    os.close(descriptor)
