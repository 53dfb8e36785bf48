"""Finds the processes of a container and its exit code, in this or a later agent.

The *watcher* is outside the container, waits for the program to end and writes its exit code to the status file, even
without an agent. *init* is the first process of the container's PID namespace. The *program* is the command of the
container. All of them are in the container's cgroup; a PID that is not in it has been reused.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sandpool.node.cgroups.group import Group
from sandpool.node.cgroups.process_identity import start_time


class ProcessTracker(ABC):
    def __init__(self, status: Path, cgroup: Group) -> None:
        self.status = status
        self.cgroup = cgroup

    @abstractmethod
    def init(self) -> int | None: ...

    @abstractmethod
    def program(self) -> int | None:
        """The program's PID. Once it is known, the namespaces are complete."""

    @abstractmethod
    def is_executed(self) -> bool:
        """Whether the process has executed the program, and is no longer the runtime."""

    @abstractmethod
    def watcher(self) -> int | None: ...

    def exit_code(self) -> int | None:
        """The exit code of the program, if it was executed and has ended. None if it was killed with its watcher."""
        code = self._reported("exit-code")
        return None if code is None else int(code)

    def ended_at(self) -> float:
        """The time at which the exit code was written, in seconds since the epoch."""
        return self.status.stat().st_mtime

    def _reported(self, key: str) -> Any:
        """Return a value of the status file, which has one JSON document per line. An incomplete line is ignored."""
        with suppress(FileNotFoundError):
            for line in self.status.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    with suppress(ValueError):
                        found = json.loads(line)
                        if key in found:
                            return found[key]
        return None


class BwrapProcessTracker(ProcessTracker):
    """bwrap is the watcher and, in another process, init, which reaps orphans. The program is the second process of the
    PID namespace."""

    _PROGRAM: Final = 2

    def __init__(self, status: Path, cgroup: Group) -> None:
        super().__init__(status, cgroup)
        # Until the program is executed: its process, and the executable file of bwrap.
        self._becoming: tuple[int, os.stat_result] | None = None

    def init(self) -> int | None:
        pid = self._reported("child-pid")
        return pid if pid is not None and pid in self.cgroup.processes() else None

    def watcher(self) -> int | None:
        init = self.init()
        if init is None:
            return None
        pid = parent(init)
        return pid if pid in self.cgroup.processes() else None

    def program(self) -> int | None:
        init = self.init()
        if init is None:
            return None
        with suppress(OSError):
            children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
            return next((int(pid) for pid in children if inner_pid(int(pid)) == self._PROGRAM), None)
        return None

    def is_executed(self) -> bool:
        """Polled while containers start, of which there may be many: once the processes are known, this costs one
        stat."""
        with suppress(OSError):
            if self._becoming is None:
                init, program = self.init(), self.program()
                if init is None or program is None:
                    return False
                self._becoming = program, os.stat(f"/proc/{init}/exe")
            program, bwrap = self._becoming
            return not os.path.samestat(bwrap, os.stat(f"/proc/{program}/exe"))
        return False


class OciProcessTracker(ProcessTracker):
    """The program is init. Its parent is the runtime, which waits for it, and the parent of that is the shell that
    writes the exit code."""

    def __init__(self, status: Path, cgroup: Group, runtime: str) -> None:
        super().__init__(status, cgroup)
        self.runtime = runtime

    def init(self) -> int | None:
        return next((pid for pid in self.cgroup.processes() if pid and inner_pid(pid) == 1), None)

    def program(self) -> int | None:
        return self.init() if self.is_executed() else None

    def is_executed(self) -> bool:
        init = self.init()
        if init is None:
            return False
        with suppress(OSError):
            # Before that it is the runtime, or a copy of the runtime in memory.
            name = os.readlink(f"/proc/{init}/exe")
            return not name.startswith("/memfd:") and os.path.basename(name) != self.runtime
        return False

    def watcher(self) -> int | None:
        """The process of root with a parent outside the cgroup. (An exec agent runs as the container's user.)"""
        processes = set(self.cgroup.processes())
        outside = (pid for pid in sorted(processes) if pid and depth(pid) == 1 and owner(pid) == 0)
        return next((pid for pid in outside if parent(pid) not in processes), None)


class UnconfinedProcessTracker(ProcessTracker):
    """The watcher is a fork of the launcher, and the program is its child. The status file has their start times: PIDs
    are reused, and there may be no cgroup that identifies the processes."""

    def init(self) -> int | None:
        return self.program()

    def program(self) -> int | None:
        return self._alive("program")

    def is_executed(self) -> bool:
        return True  # the launcher replies after the execution

    def watcher(self) -> int | None:
        return self._alive("watcher")

    def _alive(self, who: str) -> int | None:
        pid, since = self._reported(who) or (None, None)
        return pid if pid is not None and since is not None and start_time(pid) == since else None


def parent(pid: int) -> int | None:
    numbers = _numbers(pid, "PPid")
    return numbers[0] if numbers else None


def owner(pid: int) -> int | None:
    numbers = _numbers(pid, "Uid")
    return numbers[0] if numbers else None


def inner_pid(pid: int) -> int | None:
    """The PID in the process's own PID namespace; None if that is ours."""
    numbers = _numbers(pid, "NSpid")
    return numbers[-1] if len(numbers) > 1 else None


def depth(pid: int) -> int:
    """The number of nested PID namespaces that the process is in, from ours on: 1 means only ours."""
    return len(_numbers(pid, "NSpid"))


def _numbers(pid: int, name: str) -> list[int]:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return [int(number) for number in value.split()]
    return []
