"""Groups of processes for a user who may not make cgroups: whoever has the group's mark in its environment is in it.

Children inherit the mark, and it is found again by whoever looks, so a group outlives the agent. It bounds nothing:
nothing is limited, and a program that gives its children an empty environment has let them go. That is good enough for
a runtime that promises nothing (``runtimes.process``), and for no other.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.emulated_group import EmulatedGroup
from sandpool.node.cgroups.group import Group

#: The variable that holds the mark.
MARK: Final = "SANDPOOL_PROCESSES"


class EnvironmentGroups:
    """``directory`` is where is kept which groups there are; its own path is part of every mark, so that nobody else
    has the same."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check(self) -> None:
        pass  # anybody can do this

    def group(self, *path: str) -> EnvironmentGroup:
        return EnvironmentGroup(self, "/".join(path))

    def close(self) -> None:
        pass


class EnvironmentGroup(EmulatedGroup):
    def __init__(self, marks: EnvironmentGroups, path: str) -> None:
        super().__init__(path, marks.directory / path)
        self.mark = str(self.directory)

    def processes(self) -> list[int]:
        """O(processes of the machine)."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._has_mark(name)]

    def _has_mark(self, pid: str) -> bool:
        with suppress(OSError):
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = variable.partition(b"=")
                if name == MARK.encode():
                    mark = os.fsdecode(value)
                    return mark == self.mark or mark.startswith(f"{self.mark}/")
        return False


def group_environment(group: Group) -> dict[str, str]:
    """What must be in the environment of a process that is to be in the group; nothing if it is one of the kernel's."""
    return {MARK: group.mark} if isinstance(group, EnvironmentGroup) else {}
