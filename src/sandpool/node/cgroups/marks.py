"""Groups of processes for a user who may not make cgroups: whoever has the group's mark in its environment is in it.

Children inherit the mark, and it is found again by whoever looks, so a group outlives the agent. It bounds nothing:
nothing is limited, and a program that gives its children an empty environment has let them go. That is good enough for
a runtime that promises nothing (``runtimes.process``), and for no other.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.limits import Limits, Usage
from sandpool.node.descriptors import readable

#: The variable that holds the mark.
MARK: Final = "SANDPOOL_PROCESSES"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STOPPED: Final = "T"


class Marks:
    """``directory`` is where is kept which groups there are; its own path is part of every mark, so that nobody else
    has the same."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check(self) -> None:
        pass  # anybody can do this

    def group(self, *path: str) -> Marked:
        return Marked(self, "/".join(path))

    def close(self) -> None:
        pass


class Marked:
    def __init__(self, marks: Marks, path: str) -> None:
        self.path = path
        self.directory = marks.directory / path
        self.mark = str(self.directory)

    def create(self, limits: Limits) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def entrances(self) -> list[Path]:
        return []

    def children(self) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(entry.name for entry in os.scandir(self.directory))
        return []

    def processes(self) -> list[int]:
        """Also those of groups in it. O(processes of the machine)."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._has_mark(name)]

    def is_frozen(self) -> bool:
        states = [fields[0] for pid in self.processes() if (fields := stat_of(pid))]
        return bool(states) and all(state == _STOPPED for state in states)

    async def freeze(self) -> None:
        while not self.is_frozen() and self.processes():
            self._signal(signal.SIGSTOP)
            await asyncio.sleep(0)

    async def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def strike(self) -> None:
        self._signal(signal.SIGKILL)

    async def kill(self) -> None:
        while pids := self.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    await ended(pid)

    def usage(self) -> Usage:
        return usage_of(self.processes())

    def oom_kills(self) -> int:
        return 0  # nobody counts them

    def watch_memory(self, callback: Callable[[], None]) -> None:
        return None

    async def remove(self) -> None:
        await self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _has_mark(self, pid: str) -> bool:
        with suppress(OSError):
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = variable.partition(b"=")
                if name == MARK.encode():
                    mark = os.fsdecode(value)
                    return mark == self.mark or mark.startswith(f"{self.mark}/")
        return False


def usage_of(pids: list[int]) -> Usage:
    """Of those that run: what those have used that have ended nobody knows."""
    found = [fields for pid in pids if (fields := stat_of(pid))]
    memory = sum(int(fields[21]) for fields in found) * _PAGE
    ticks = sum(int(fields[11]) + int(fields[12]) for fields in found)
    return Usage(ticks * 10**9 // _TICKS, memory, memory, sum(int(fields[17]) for fields in found))


async def ended(pid: int) -> None:
    """Kill a process and wait until it has ended."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await readable(pidfd)
    finally:
        os.close(pidfd)


def stat_of(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; empty if it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
