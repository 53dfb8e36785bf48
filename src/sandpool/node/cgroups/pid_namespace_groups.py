"""Groups of processes for a user who may not make cgroups, if they are in a PID namespace of their own.

Whoever enters a group writes itself down; everything else is in the PID namespace that one of those has made, and goes
when its first process goes. Nobody leaves a PID namespace, so such a group ends as reliably as a cgroup does. What it
cannot do is limit anything, and to freeze it is to stop one process after the other until none is left that runs.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.emulated_group import EmulatedGroup
from sandpool.node.cgroups.process_identity import MEMBERS, proc_stat, start_time

_ENDED: Final = ("Z", "X")
# A file with the first process of the PID namespace, when that began, and the namespace.
_INIT: Final = "init"


class PidNamespaceGroups:
    """``directory`` is where is kept who is in which group."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check(self) -> None:
        pass  # whether there are namespaces is for the runtime to find out

    def group(self, *path: str) -> PidNamespaceGroup:
        return PidNamespaceGroup(self, "/".join(path))

    def close(self) -> None:
        pass


class PidNamespaceGroup(EmulatedGroup):
    def __init__(self, members: PidNamespaceGroups, path: str) -> None:
        super().__init__(path, members.directory / path)
        self._members = members

    def join_files(self) -> list[Path]:
        return [self.directory / MEMBERS]

    def processes(self) -> list[int]:
        """O(processes of this user)."""
        found = self._entered()
        found += self._inside(found)
        for child in self.children():
            found += self._members.group(*filter(None, (self.path, child))).processes()
        return list(dict.fromkeys(found))

    def programs(self) -> list[int]:
        return self._inside(self._entered())

    def _entered(self) -> list[int]:
        """Those who have written themselves down and are still there."""
        with suppress(FileNotFoundError):
            entries = [line.split() for line in (self.directory / MEMBERS).read_text().splitlines()]
            return [int(pid) for pid, since in entries if start_time(int(pid)) == int(since) and _runs(int(pid))]
        return []

    def _inside(self, entered: list[int]) -> list[int]:
        """The processes of the PID namespace, if there is one."""
        namespace = self._namespace(entered)
        if namespace is None:
            return []
        own = os.geteuid()
        found = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and _owner(entry) == own]
        return [pid for pid in found if namespace_of(pid) == namespace and _runs(pid)]

    def _namespace(self, entered: list[int]) -> str | None:
        with suppress(FileNotFoundError, ValueError):
            pid, since, namespace = json.loads((self.directory / _INIT).read_text())
            # Numbers of namespaces are given again; this process at this time is not.
            return str(namespace) if start_time(pid) == since else None
        ours = namespace_of(os.getpid())
        for pid in entered:
            with suppress(OSError):
                for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                    namespace = namespace_of(child)
                    if namespace not in (None, ours):
                        (self.directory / _INIT).write_text(json.dumps([child, start_time(child), namespace]))
                        return namespace
        return None


def namespace_of(pid: int) -> str | None:
    """Its PID namespace. None if it has gone or is none of ours."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return None


def _runs(pid: int) -> bool:
    """Whether it has not ended. One that has, and was not fetched by its parent, can neither be stopped nor killed."""
    fields = proc_stat(pid)
    return bool(fields) and fields[0] not in _ENDED


def _owner(entry: os.DirEntry[str]) -> int:
    with suppress(OSError):
        return entry.stat().st_uid
    return -1
