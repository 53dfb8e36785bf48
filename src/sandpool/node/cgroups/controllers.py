"""How limits are written and use is read: once for cgroup v2, once for v1.

Both know one cgroup by its path relative to the hierarchy. What v1 does not have is made up for: there, the memory of
everything in a cgroup is not freed together by the kernel when it is exceeded, see ``events.OutOfMemory``.
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
from sandpool.node.cgroups.process_identity import PROCESSES

# Microseconds over which a CPU limit holds, and the least that can be given of them.
_PERIOD: Final = 100_000
_LEAST: Final = 1_000
# Where the processes go that are in the way, and how often those are moved that were forked meanwhile.
_OTHERS: Final = "others"
_FORKED: Final = 100


class Controllers(Protocol):
    def make(self, path: str) -> None: ...

    def limit(self, path: str, limits: Limits) -> None: ...

    def join_files(self, path: str) -> list[Path]:
        """Where a process that has one thread writes 0 to come under these limits; the unified hierarchy is not among
        them."""
        ...

    def memory(self, path: str) -> tuple[int, int]:
        """Bytes in use, and those of them that are files nobody has used of late."""
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
            self._pass_on(directory)
            directory /= name
            directory.mkdir(exist_ok=True)

    def _pass_on(self, directory: Path) -> None:
        """Have the controllers in the cgroups below. Only the root of all may do so while processes are in it; the root
        that a container sees is another one, and in it are the container's processes, of which this is one."""
        for _ in range(_FORKED):
            try:
                _write(directory / "cgroup.subtree_control", " ".join(f"+{controller}" for controller in CONTROLLERS))
            except OSError as error:
                if error.errno != errno.EBUSY or directory != self.root:
                    raise
                self._make_way()
            else:
                return
        raise OSError(errno.EBUSY, "it has processes which cannot be moved to one below", str(directory))

    def _make_way(self) -> None:
        others = self.root / _OTHERS
        others.mkdir(exist_ok=True)
        for pid in (self.root / PROCESSES).read_text().split():
            if pid != "0":  # one of another PID namespace; and to write it would be to name ourselves
                with suppress(ProcessLookupError):
                    _write(others / PROCESSES, pid)

    def limit(self, path: str, limits: Limits) -> None:
        directory = self.root / path
        _write(directory / "cpu.max", f"{_quota(limits.cpu) or 'max'} {_PERIOD}")
        if limits.cpu_request is not None:
            # The range of shares in that of weights, as the kubelet translates it.
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
        pass  # it is the directory in the unified hierarchy


class Hybrid:
    def __init__(self, roots: dict[str, Path]) -> None:
        self.roots = roots

    def make(self, path: str) -> None:
        for directory in self._directories(path):
            directory.mkdir(parents=True, exist_ok=True)

    def limit(self, path: str, limits: Limits) -> None:
        cpu, memory, pids = (self.roots[name] / path for name in CONTROLLERS)
        _write(cpu / "cpu.cfs_period_us", str(_PERIOD))
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
            # Memory alone may never have more than memory and swap together, so to raise both, that one goes first.
            _write(with_swap, bound)
            _write(memory / "memory.limit_in_bytes", bound)
        _write(pids / "pids.max", str(limits.pids or "max"))

    def join_files(self, path: str) -> list[Path]:
        # For one thread alone the kernel does not wait until nobody else is being moved, which takes milliseconds.
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
    """Remove a cgroup and those in it, in which there must be no processes."""
    if not directory.is_dir():
        return
    for parent, children, _ in os.walk(directory, topdown=False):
        for child in children:
            Path(parent, child).rmdir()
    directory.rmdir()


def _quota(cores: float | None) -> int | None:
    return None if cores is None else max(_LEAST, round(cores * _PERIOD))


def _shares(cores: float) -> int:
    return min(262144, max(2, round(cores * 1024)))


def _write(file: Path, value: str) -> None:
    file.write_text(value)


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
