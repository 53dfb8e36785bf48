"""The cgroups of one node: ``<name>/<pod>/<container>`` in every hierarchy."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.controllers import Controllers, Hybrid, controllers_of, remove_tree
from sandpool.node.cgroups.events import CgroupEvents, OomWatch
from sandpool.node.cgroups.limits import Limits, Usage
from sandpool.node.cgroups.mounts import Mounts, NoCgroups
from sandpool.node.cgroups.process_identity import CGROUP_PROCS

# How often to kill processes that join a cgroup while it is being removed.
_REMOVE_ATTEMPTS: Final = 1000


class Cgroups:
    """``name`` is the node's cgroup, unique on the machine: everything below it belongs to the node."""

    def __init__(self, mounts: Mounts, name: str) -> None:
        self.mounts = mounts
        self.name = name
        self.controllers: Controllers = controllers_of(mounts)
        self.events = CgroupEvents()

    def check(self) -> None:
        """Raise ``NoCgroups`` unless cgroups can be made, killed and frozen."""
        probe = self.group(f"probe-{os.getpid()}")
        try:
            probe.create(Limits(cpu=1.0, memory=64 << 20, pids=8))
            missing = [file for file in ("cgroup.kill", "cgroup.freeze") if not (probe.directory / file).exists()]
        except OSError as error:
            raise NoCgroups(f"cannot make cgroups: {error}") from error
        finally:
            with suppress(OSError):
                probe.remove_empty()
        if missing:
            raise NoCgroups(f"the kernel is too old: cgroups have no {', '.join(missing)}")

    def group(self, *path: str) -> Cgroup:
        """The cgroup at this path below the node's own, whether it exists or not."""
        return Cgroup(self, "/".join((self.name, *path)))

    def close(self) -> None:
        self.events.close()


class Cgroup:
    def __init__(self, cgroups: Cgroups, path: str) -> None:
        if ".." in Path(path).parts or path.startswith("/"):
            raise ValueError(f"{path} is not a path of a cgroup")
        self.cgroups = cgroups
        self.path = path
        self.directory = cgroups.mounts.unified / path

    def create(self, limits: Limits) -> None:
        """Make the cgroup if it does not exist, and set its limits."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.cgroups.controllers.make(self.path)
        self.cgroups.controllers.limit(self.path, limits)

    def limit(self, limits: Limits) -> None:
        self.cgroups.controllers.limit(self.path, limits)

    @property
    def exists(self) -> bool:
        return self.directory.is_dir()

    def join_files(self) -> list[Path]:
        """The files to which a single-threaded process writes 0 to join, in this order. The unified hierarchy is first,
        so that a process that has joined any hierarchy can be killed."""
        return [self.directory / CGROUP_PROCS, *self.cgroups.controllers.join_files(self.path)]

    def children(self) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
        return []

    def processes(self) -> list[int]:
        """The processes of this cgroup without its descendants. 0 stands for a process that is not visible in our PID
        namespace."""
        with suppress(FileNotFoundError, OSError):
            return [int(pid) for pid in (self.directory / CGROUP_PROCS).read_text().split()]
        return []

    def is_frozen(self) -> bool:
        with suppress(FileNotFoundError):
            return "frozen 1" in self._events.read_text()
        return False

    async def freeze(self) -> None:
        (self.directory / "cgroup.freeze").write_text("1")
        await self.cgroups.events.wait_until(self._events, lambda text: "frozen 1" in text)

    async def thaw(self) -> None:
        (self.directory / "cgroup.freeze").write_text("0")
        await self.cgroups.events.wait_until(self._events, lambda text: "frozen 0" in text)

    def kill_nowait(self) -> None:
        """Kill every process of the cgroup and its descendants, frozen or forking, without waiting."""
        with suppress(FileNotFoundError):
            (self.directory / "cgroup.kill").write_text("1")

    async def kill(self) -> None:
        """Kill as ``kill_nowait`` does, and return when there are no processes left."""
        self.kill_nowait()
        await self.empty()

    async def empty(self) -> None:
        """Wait until the cgroup and its descendants have no processes."""
        await self.cgroups.events.wait_until(self._events, lambda text: "populated 0" in text)

    def usage(self) -> Usage:
        controllers = self.cgroups.controllers
        used, inactive = controllers.memory(self.path)
        # The unified hierarchy counts CPU time even without a cpu controller.
        time = next(
            int(line.split()[1])
            for line in (self.directory / "cpu.stat").read_text().splitlines()
            if line.startswith("usage_usec ")
        )
        return Usage(
            cpu_nanoseconds=time * 1000,
            memory_bytes=used,
            working_set_bytes=max(0, used - inactive),
            pids=controllers.pids(self.path),
        )

    def oom_kills(self) -> int:
        """The number of OOM kills in the cgroup; on v2 one process may count twice."""
        with suppress(FileNotFoundError):
            return self.cgroups.controllers.oom_kills(self.path)
        return 0

    def watch_oom(self, callback: Callable[[], None]) -> OomWatch | None:
        """Call back when memory runs out. Returns None on v2, where the kernel kills all processes itself."""
        controllers = self.cgroups.controllers
        return OomWatch(controllers.roots["memory"] / self.path, callback) if isinstance(controllers, Hybrid) else None

    async def remove(self) -> None:
        """Kill all processes, then remove the cgroup and its descendants. Does nothing if it is gone."""
        for _ in range(_REMOVE_ATTEMPTS):
            await self.kill()
            try:
                self.remove_empty()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                await asyncio.sleep(0)  # a process was about to join, and is killed next time
            else:
                return
        raise OSError(errno.EBUSY, "processes keep entering the cgroup", str(self.directory))

    def remove_empty(self) -> None:
        self.cgroups.controllers.remove(self.path)
        remove_tree(self.directory)
        self.cgroups.events.recheck_all()

    @property
    def _events(self) -> Path:
        return self.directory / "cgroup.events"
