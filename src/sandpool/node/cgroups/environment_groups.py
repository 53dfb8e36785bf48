"""Groups for a user who may not make cgroups: a process belongs to a group by an environment variable.

Children inherit the variable, so the next agent finds a group again. Limits are not enforced, and a program that starts
children with an empty environment loses them. That is good enough for the runtime without isolation
(``runtimes.process``) only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.emulated_group import EmulatedGroup
from sandpool.node.cgroups.group import Group
from sandpool.node.cgroups.process_identity import proc_stat

#: The environment variable.
VARIABLE: Final = "SANDPOOL_PROCESSES"

# How often, and how many seconds apart, a process is looked at that is just executing a program.
_LOOKS: Final = 100
_PAUSE: Final = 0.0005
# Fields of ``proc_stat``. The places of the environment are 0 while the process executes a program.
_VIRTUAL_MEMORY: Final = 20
_ENVIRONMENT_START: Final = 47
_ENVIRONMENT_END: Final = 48


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
        for variable in _environment(pid).split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == VARIABLE.encode():
                found = os.fsdecode(value)
                return found == self.value or found.startswith(f"{self.value}/")
        return False


def _environment(pid: str) -> bytes:
    """The environment of a process; empty if it has ended. The kernel shows an empty one also while a process executes
    a program; such a process is looked at again."""
    with suppress(OSError):
        for _ in range(_LOOKS):
            found = Path(f"/proc/{pid}/environ").read_bytes()
            if found or not _may_have_environment(proc_stat(int(pid))):
                return found
            time.sleep(_PAUSE)
    return b""


def _may_have_environment(stat: list[str]) -> bool:
    """Whether the fields of /proc/PID/stat show a process with an environment, or one that gets it with the program
    that it executes. Kernel threads and zombies have no memory."""
    if len(stat) <= _ENVIRONMENT_END or stat[_VIRTUAL_MEMORY] == "0":
        return False
    return stat[_ENVIRONMENT_END] == "0" or stat[_ENVIRONMENT_START] != stat[_ENVIRONMENT_END]


def group_environment(group: Group) -> dict[str, str]:
    """The environment variables that put a process into the group; empty for a group of another kind."""
    return {VARIABLE: group.value} if isinstance(group, EnvironmentGroup) else {}
