"""Groups for a user who may not make cgroups, of processes in a PID namespace.

A process that joins a group records itself in a file. All others are in the PID namespace that one of the recorded
processes has made, and end with its first process. A process cannot leave a PID namespace, so such a group ends as
reliably as a cgroup does. It enforces no limits, and freezing it stops one process after the other until none runs.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.emulated_group import EmulatedGroup
from sandpool.node.cgroups.process_identity import MEMBERS_FILE, proc_stat, start_time

_ENDED: Final = ("Z", "X")
# A file with the first process of the PID namespace, its start time, and the namespace.
_INIT: Final = "init"


class PidNamespaceGroups:
    """``directory`` has a directory for every group with its records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check(self) -> None:
        pass  # the runtime finds out whether namespaces can be made

    def group(self, *path: str) -> PidNamespaceGroup:
        return PidNamespaceGroup(self, "/".join(path))

    def close(self) -> None:
        pass


class PidNamespaceGroup(EmulatedGroup):
    def __init__(self, members: PidNamespaceGroups, path: str) -> None:
        super().__init__(path, members.directory / path)
        self._members = members

    def join_files(self) -> list[Path]:
        return [self.directory / MEMBERS_FILE]

    def processes(self) -> list[int]:
        """The processes of the group and its child groups. O(processes of this user)."""
        found = self._recorded()
        found += self._inside(found)
        for child in self.children():
            found += self._members.group(*filter(None, (self.path, child))).processes()
        return list(dict.fromkeys(found))

    def freezable_processes(self) -> list[int]:
        return self._inside(self._recorded())

    def _recorded(self) -> list[int]:
        """The recorded processes that still run."""
        with suppress(FileNotFoundError):
            entries = [line.split() for line in (self.directory / MEMBERS_FILE).read_text().splitlines()]
            return [int(pid) for pid, since in entries if start_time(int(pid)) == int(since) and _runs(int(pid))]
        return []

    def _inside(self, recorded: list[int]) -> list[int]:
        """The processes of the PID namespace, if it exists."""
        namespace = self._namespace(recorded)
        if namespace is None:
            return []
        own = os.geteuid()
        with os.scandir("/proc") as entries:
            found = [int(entry.name) for entry in entries if entry.name.isdigit() and _owner(entry) == own]
        return [pid for pid in found if namespace_of(pid) == namespace and _runs(pid)]

    def _namespace(self, recorded: list[int]) -> str | None:
        with suppress(FileNotFoundError, ValueError):
            pid, since, namespace = json.loads((self.directory / _INIT).read_text())
            # The kernel reuses numbers of namespaces; a PID with this start time is unique.
            return str(namespace) if start_time(pid) == since else None
        ours = namespace_of(os.getpid())
        for pid in recorded:
            with suppress(OSError):
                for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                    namespace = namespace_of(child)
                    if namespace not in (None, ours):
                        (self.directory / _INIT).write_text(json.dumps([child, start_time(child), namespace]))
                        return namespace
        return None


def namespace_of(pid: int) -> str | None:
    """The PID namespace of a process. None if the process has ended or belongs to another user."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return None


def _runs(pid: int) -> bool:
    """Whether a process runs. A zombie can neither be stopped nor killed."""
    fields = proc_stat(pid)
    return bool(fields) and fields[0] not in _ENDED


def _owner(entry: os.DirEntry[str]) -> int:
    with suppress(OSError):
        return entry.stat().st_uid
    return -1
