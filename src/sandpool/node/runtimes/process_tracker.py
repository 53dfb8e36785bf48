"""What a container has left to be found: its processes, and how it ended.

The *watcher* is outside, waits for the program to end and writes its exit code to the status file, wherever the agent
is by then. *init* is the first process of the container's PID namespace. The *program* is what the container was made
for. All are in the container's cgroup, and a PID that is not in there is somebody else's by now.
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
        """Once it is there the namespaces are as they are going to be."""

    @abstractmethod
    def is_executed(self) -> bool:
        """Whether the program is what it is going to be, and no longer a part of what confines it."""

    @abstractmethod
    def watcher(self) -> int | None: ...

    def exit_code(self) -> int | None:
        """Of the program, if it was executed and has ended. One that was killed with everything has none."""
        code = self._reported("exit-code")
        return None if code is None else int(code)

    def ended_at(self) -> float:
        """When the exit code was written, which is the last that is; in seconds since the epoch."""
        return self.status.stat().st_mtime

    def _reported(self, key: str) -> Any:
        """The status is one document per line, written in pieces; half a line is not there yet."""
        with suppress(FileNotFoundError):
            for line in self.status.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    with suppress(ValueError):
                        found = json.loads(line)
                        if key in found:
                            return found[key]
        return None


class BwrapProcessTracker(ProcessTracker):
    """bwrap is the watcher and, in another process, init, which reaps orphans; the program is the second process of
    the PID namespace."""

    _PROGRAM: Final = 2

    def __init__(self, status: Path, cgroup: Group) -> None:
        super().__init__(status, cgroup)
        # While the program is not executed: its process, and the file that bwrap was executed from.
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
        """Asked again and again while a container starts, and there may be many: once its processes are known, all
        that is looked at is what one of them executes."""
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
    """The program is init; above it is the runtime, which waits for it, and above that the shell that writes down what
    the runtime says."""

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
            # Until then it is the runtime, or a copy of it in memory.
            name = os.readlink(f"/proc/{init}/exe")
            return not name.startswith("/memfd:") and os.path.basename(name) != self.runtime
        return False

    def watcher(self) -> int | None:
        """Root's, whose parent is not the container's. (A porter is the container's user's.)"""
        processes = set(self.cgroup.processes())
        outside = (pid for pid in sorted(processes) if pid and depth(pid) == 1 and owner(pid) == 0)
        return next((pid for pid in outside if parent(pid) not in processes), None)


class UnconfinedProcessTracker(ProcessTracker):
    """The watcher is a process of the launcher's that stays, and the program its child. When each began is in the
    status: who has the PID when another agent looks need not be one of ours, and there may be no cgroup to tell."""

    def init(self) -> int | None:
        return self.program()

    def program(self) -> int | None:
        return self._alive("program")

    def is_executed(self) -> bool:
        return True  # the launcher answers when it is

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
    """What it is in its own PID namespace, if that is not ours."""
    numbers = _numbers(pid, "NSpid")
    return numbers[-1] if len(numbers) > 1 else None


def depth(pid: int) -> int:
    """How many PID namespaces it is in, as far as we see: 1 is ours alone."""
    return len(_numbers(pid, "NSpid"))


def _numbers(pid: int, name: str) -> list[int]:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return [int(number) for number in value.split()]
    return []
