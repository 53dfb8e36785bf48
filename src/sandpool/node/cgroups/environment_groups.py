"""Groups for a user who may not make cgroups: a process belongs to a group by an environment variable.

Children inherit the variable, so the next agent finds a group again. Limits are not enforced, and a program that starts
children with an empty environment loses them. That is good enough for the runtime without isolation
(``runtimes.process``) only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.emulated_group import EmulatedGroup
from sandpool.node.cgroups.group import Group

#: The environment variable.
VARIABLE: Final = "SANDPOOL_PROCESSES"


class EnvironmentGroups:
    """``directory`` has a directory for every group. Its path is part of the variable's value, which makes the value
    unique on the machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check(self) -> None:
        pass  # always available

    def group(self, *path: str) -> EnvironmentGroup:
        return EnvironmentGroup(self, "/".join(path))

    def close(self) -> None:
        pass


class EnvironmentGroup(EmulatedGroup):
    def __init__(self, marks: EnvironmentGroups, path: str) -> None:
        super().__init__(path, marks.directory / path)
        self.value = str(self.directory)

    def processes(self) -> list[int]:
        """The processes of the group. O(processes of the machine)."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._has_variable(name)]

    def _has_variable(self, pid: str) -> bool:
        with suppress(OSError):
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = variable.partition(b"=")
                if name == VARIABLE.encode():
                    found = os.fsdecode(value)
                    return found == self.value or found.startswith(f"{self.value}/")
        return False


def group_environment(group: Group) -> dict[str, str]:
    """The environment variables that put a process into the group; empty for a group of another kind."""
    return {VARIABLE: group.value} if isinstance(group, EnvironmentGroup) else {}
