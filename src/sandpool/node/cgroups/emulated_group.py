"""Base of groups that emulate a cgroup: processes are looked up in /proc, and frozen and killed with signals.

Subclasses differ in the lookup (``environment_groups``, ``pid_namespace_groups``). None of them enforces limits.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.limits import Limits, Usage
from sandpool.node.cgroups.process_identity import proc_stat
from sandpool.node.descriptors import readable

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STOPPED: Final = "T"


class EmulatedGroup(ABC):
    """``directory`` has a directory for every child group."""

    def __init__(self, path: str, directory: Path) -> None:
        self.path = path
        self.directory = directory

    @abstractmethod
    def processes(self) -> list[int]:
        """The processes of this group and its child groups."""

    def freezable_processes(self) -> list[int]:
        """The processes that ``freeze`` stops."""
        return self.processes()

    def create(self, limits: Limits) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def limit(self, limits: Limits) -> None:  # noqa: B027 - limits are not enforced
        pass

    def join_files(self) -> list[Path]:
        return []

    def children(self) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
        return []

    def is_frozen(self) -> bool:
        states = [fields[0] for pid in self.freezable_processes() if (fields := proc_stat(pid))]
        return bool(states) and all(state == _STOPPED for state in states)

    async def freeze(self) -> None:
        while not self.is_frozen() and (pids := self.freezable_processes()):
            _signal(pids, signal.SIGSTOP)
            await asyncio.sleep(0)

    async def thaw(self) -> None:
        _signal(self.freezable_processes(), signal.SIGCONT)

    def kill_nowait(self) -> None:
        _signal(self.processes(), signal.SIGKILL)

    async def kill(self) -> None:
        while pids := self.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    await _kill_and_wait(pid)

    def usage(self) -> Usage:
        """The usage of running processes. That of ended processes is unknown."""
        found = [fields for pid in self.processes() if (fields := proc_stat(pid))]
        memory = sum(int(fields[21]) for fields in found) * _PAGE
        ticks = sum(int(fields[11]) + int(fields[12]) for fields in found)
        return Usage(ticks * 10**9 // _TICKS, memory, memory, sum(int(fields[17]) for fields in found))

    def oom_kills(self) -> int:
        return 0  # not counted

    def watch_oom(self, callback: Callable[[], None]) -> None:
        return None

    async def remove(self) -> None:
        await self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


async def _kill_and_wait(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await readable(pidfd)
    finally:
        os.close(pidfd)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
