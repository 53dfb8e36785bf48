"""Writes limits and reads usage of cgroups, for cgroup v2 and for v1.

Both take the path of a cgroup relative to the hierarchy. On v1 the kernel does not kill all processes of a cgroup that
runs out of memory; ``events.OomWatch`` makes up for that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.mounts import CONTROLLERS, Mounts
from sandpool.node.cgroups.process_identity import CGROUP_PROCS

# The period of a CPU limit and the smallest quota the kernel accepts.
_CPU_PERIOD_US: Final = 100_000
_MIN_CPU_QUOTA_US: Final = 1_000
# The cgroup to which processes of the root are moved, and how often to repeat that for processes forked meanwhile.
_EVACUATED: Final = "others"
_EVACUATION_ATTEMPTS: Final = 100


class Controllers(Protocol):
    def make(self, path: str) -> None: ...

    def limit(self, path: str, limits: Limits) -> None: ...

    def join_files(self, path: str) -> list[Path]:
        """The files to which a single-threaded process writes 0 to join, without that of the unified hierarchy."""
        ...

    def memory(self, path: str) -> tuple[int, int]:
        """Bytes in use, and how many of them are inactive file pages."""
        ...

    def pids(self, path: str) -> int: ...

    def oom_kills(self, path: str) -> int: ...

    def remove(self, path: str) -> None: ...


def controllers_of(mounts: Mounts) -> Controllers:
    return Hybrid(mounts.v1) if mounts.v1 else Unified(mounts.unified)


class Unified:
    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, path: str) -> None:
        directory = self.root
        for name in Path(path).parts:
            self._enable_controllers(directory)
            directory /= name
            directory.mkdir(exist_ok=True)

    def _enable_controllers(self, directory: Path) -> None:
        """Enable the controllers for the cgroups below ``directory``.

        The kernel allows that for a cgroup with processes only at the root of the machine. The root that a container
        sees is not that one, and has the processes of that container, the agent among them: they are moved below."""
        for _ in range(_EVACUATION_ATTEMPTS):
            try:
                _write(directory / "cgroup.subtree_control", " ".join(f"+{controller}" for controller in CONTROLLERS))
            except OSError as error:
                if error.errno != errno.EBUSY or directory != self.root:
                    raise
                self._evacuate_root()
            else:
                return
        raise OSError(errno.EBUSY, "it has processes that cannot be moved to a child cgroup", str(directory))

    def _evacuate_root(self) -> None:
        others = self.root / _EVACUATED
        others.mkdir(exist_ok=True)
        for pid in (self.root / CGROUP_PROCS).read_text().split():
            if pid != "0":  # a process of another PID namespace; writing 0 would move this process
                with suppress(ProcessLookupError):
                    _write(others / CGROUP_PROCS, pid)

    def limit(self, path: str, limits: Limits) -> None:
        directory = self.root / path
        _write(directory / "cpu.max", f"{_quota(limits.cpu) or 'max'} {_CPU_PERIOD_US}")
        if limits.cpu_request is not None:
            # Shares converted to a weight, as the kubelet does it.
            _write(directory / "cpu.weight", str(1 + (_shares(limits.cpu_request) - 2) * 9999 // 262142))
        _write(directory / "memory.max", str(limits.memory or "max"))
        if (directory / "memory.swap.max").exists():
            _write(directory / "memory.swap.max", "0" if limits.memory else "max")
        _write(directory / "memory.oom.group", "1")
        _write(directory / "pids.max", str(limits.pids or "max"))

    def join_files(self, path: str) -> list[Path]:
        return []

    def memory(self, path: str) -> tuple[int, int]:
        directory = self.root / path
        return int((directory / "memory.current").read_text()), _field(directory / "memory.stat", "inactive_file")

    def pids(self, path: str) -> int:
        return int((self.root / path / "pids.current").read_text())

    def oom_kills(self, path: str) -> int:
        return _field(self.root / path / "memory.events", "oom_kill")

    def remove(self, path: str) -> None:
        pass  # the caller removes the directory in the unified hierarchy


class Hybrid:
    def __init__(self, roots: dict[str, Path]) -> None:
        self.roots = roots

    def make(self, path: str) -> None:
        for directory in self._directories(path):
            directory.mkdir(parents=True, exist_ok=True)

    def limit(self, path: str, limits: Limits) -> None:
        cpu, memory, pids = (self.roots[name] / path for name in CONTROLLERS)
        _write(cpu / "cpu.cfs_period_us", str(_CPU_PERIOD_US))
        _write(cpu / "cpu.cfs_quota_us", str(_quota(limits.cpu) or -1))
        if limits.cpu_request is not None:
            _write(cpu / "cpu.shares", str(_shares(limits.cpu_request)))
        bound = str(limits.memory or -1)
        with_swap = memory / "memory.memsw.limit_in_bytes"
        try:
            _write(memory / "memory.limit_in_bytes", bound)
            if with_swap.exists():
                _write(with_swap, bound)
        except OSError:
            # The kernel refuses a memory limit above the limit of memory and swap, so raise that one first.
            _write(with_swap, bound)
            _write(memory / "memory.limit_in_bytes", bound)
        _write(pids / "pids.max", str(limits.pids or "max"))

    def join_files(self, path: str) -> list[Path]:
        # Moving a single thread by ``tasks`` avoids a lock that takes the kernel milliseconds to get.
        return [directory / "tasks" for directory in self._directories(path)]

    def memory(self, path: str) -> tuple[int, int]:
        directory = self.roots["memory"] / path
        used = int((directory / "memory.usage_in_bytes").read_text())
        return used, _field(directory / "memory.stat", "total_inactive_file")

    def pids(self, path: str) -> int:
        return int((self.roots["pids"] / path / "pids.current").read_text())

    def oom_kills(self, path: str) -> int:
        return _field(self.roots["memory"] / path / "memory.oom_control", "oom_kill")

    def remove(self, path: str) -> None:
        for directory in self._directories(path):
            remove_tree(directory)

    def _directories(self, path: str) -> Iterable[Path]:
        # Several controllers may be mounted together.
        return dict.fromkeys(self.roots[name] / path for name in CONTROLLERS)


def remove_tree(directory: Path) -> None:
    """Remove a cgroup and its descendants, which must have no processes."""
    if not directory.is_dir():
        return
    for parent, children, _ in os.walk(directory, topdown=False):
        for child in children:
            Path(parent, child).rmdir()
    directory.rmdir()


def _quota(cores: float | None) -> int | None:
    return None if cores is None else max(_MIN_CPU_QUOTA_US, round(cores * _CPU_PERIOD_US))


def _shares(cores: float) -> int:
    return min(262144, max(2, round(cores * 1024)))


def _write(file: Path, value: str) -> None:
    """Write without the layers of a text file, which cost more than the write: one sandbox needs a dozen."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
