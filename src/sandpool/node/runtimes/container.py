"""Base of the runtimes, containers and processes that are started through the launcher.

Runtimes differ in how they confine a container. Once it runs, all of them are the same: processes in namespaces and a
cgroup, which identifies the container, and a watcher that writes its exit code to a file.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.engine.clock import Clock
from sandpool.node.cgroups.events import OomWatch
from sandpool.node.cgroups.group import Group, Groups
from sandpool.node.cgroups.limits import Limits, Usage
from sandpool.node.cgroups.process_identity import START_TIME, boot_ticks, proc_stat
from sandpool.node.descriptors import readable
from sandpool.node.launcher.channel import Child
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.spawn_container import ContainerRequest
from sandpool.node.launcher.unconfined import UnconfinedRequest
from sandpool.node.runtimes import stdin_once
from sandpool.node.runtimes.disk_pool import DiskPool
from sandpool.node.runtimes.process_tracker import ProcessTracker, depth
from sandpool.node.runtimes.runtime import Command, ContainerSpec, Exit, PodSandbox, RuntimeFailure, Stdio
from sandpool.node.runtimes.spec_codec import SPEC, spec_from_json, spec_to_json
from sandpool.node.runtimes.terminal import Terminal, open_terminal, open_terminal_inside

# Seconds before the first and the next check whether the program was executed. The kernel does not notify of it, and
# the check is not free when many containers start at once, so the interval grows by a factor.
_FIRST_CHECK: Final = 0.008
_CHECK_INTERVAL: Final = 0.004
_CHECK_FACTOR: Final = 1.2
# The exit code of a container whose program could not be executed, as in other container runtimes.
_NOT_EXECUTED: Final = 128
# States of processes that have ended and are still listed.
_ENDED: Final = ("Z", "X")
# In the state directory: when the container was ready, in ticks since boot.
_READY: Final = "ready"
_SETUP_FAILED: Final = 1  # the exit code of a watcher that could not set up the container
KILLED: Final = 128 + signal.SIGKILL


class LaunchedRuntime(ABC):
    """``cgroups`` and ``launcher`` may be shared with other runtimes and are closed by their maker. The self-test uses
    ``directory``."""

    def __init__(self, cgroups: Groups, launcher: LauncherClient, clock: Clock, *, directory: Path) -> None:
        self.cgroups = cgroups
        self.launcher = launcher
        self.clock = clock
        self.directory = directory
        self.disks = DiskPool()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    async def probe(self) -> str | None: ...

    @abstractmethod
    def tracker(self, status: Path, cgroup: Group) -> ProcessTracker: ...

    @abstractmethod
    def container_request(self, container: LaunchedContainer, stdio: list[int]) -> ContainerRequest | UnconfinedRequest:
        """The request for the launcher to start a container."""

    def limits(self, limits: Limits) -> Limits:
        """The limits of the cgroup, which may be higher than the requested ones."""
        return limits

    @abstractmethod
    def container(self, pod: PodSandbox, spec: ContainerSpec) -> LaunchedContainer: ...

    async def open_pod(self, pod: PodSandbox) -> None:
        self.cgroups.group(pod.uid).create(self.limits(pod.limits))

    async def close_pod(self, pod: PodSandbox) -> None:
        await self.cgroups.group(pod.uid).remove()

    async def create(self, pod: PodSandbox, spec: ContainerSpec) -> LaunchedContainer:
        container = self.container(pod, spec)
        container.make()
        return container

    async def adopt(self, pod: PodSandbox, name: str) -> LaunchedContainer | None:
        try:
            spec = spec_from_json(json.loads((pod.directory / name / SPEC).read_bytes()))
        except (FileNotFoundError, ValueError):
            return None
        container = self.container(pod, spec)
        return container if await container.find() else None

    async def pods(self) -> set[str]:
        return set(self.cgroups.group().children())

    async def close(self) -> None:
        await self.disks.close()


class LaunchedContainer(ABC):
    def __init__(self, runtime: LaunchedRuntime, pod: PodSandbox, spec: ContainerSpec) -> None:
        self.runtime = runtime
        self.pod = pod
        self.spec = spec
        self.directory = pod.directory / spec.name
        self.cgroup = runtime.cgroups.group(pod.uid, spec.name)
        self.tracker = runtime.tracker(self.directory / "status", self.cgroup)
        self.terminal: int | None = None
        self._exit: asyncio.Task[Exit] | None = None
        self._memory: OomWatch | None = None
        # Exists if memory ran out. The kernel counts only its own kills, and the agent may kill first.
        self._ran_out = self.directory / "ran-out-of-memory"
        self._launching: asyncio.Task[None] | None = None
        # Descriptors of the FIFOs: written data is lost when no process has them open any more.
        self._fifos: list[int] = []
        self._their_terminal: int | None = None
        self._disk: int | None = None  # for its writes

    @property
    def pod_uid(self) -> str:
        return self.pod.uid

    @property
    def pid(self) -> int | None:
        return self.tracker.program()

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    def make(self) -> None:
        self.directory.mkdir(mode=0o700)
        (self.directory / SPEC).write_text(json.dumps(spec_to_json(self.spec)))
        stdin = [stdin_once.STDIN] * self.spec.stdin + [stdin_once.HELD] * self.spec.stdin_once
        for name in ("stdout", "stderr", *stdin):
            os.mkfifo(self.directory / name, 0o600)
            os.chown(self.directory / name, self.pod.host_uid, self.pod.host_gid)
        self.cgroup.create(self.runtime.limits(self.spec.limits))
        if self.spec.tty:
            self.terminal, self._their_terminal = open_terminal(self.pod.host_uid, self.pod.host_gid)

    async def start(self) -> None:
        self._launching = asyncio.create_task(self._launch(), name=f"start of container {self.spec.name}")
        # Shielded: a container that was requested is started even if the caller is cancelled, so that it can be killed.
        await asyncio.shield(self._launching)
        await self._reach_program()

    async def find(self) -> bool:
        """Adopt a container that another process has started. Returns False if it was never started."""
        watcher = self.tracker.watcher()
        pidfd = -1
        if watcher is not None:
            self._memory = self.cgroup.watch_oom(self._out_of_memory)
            if self.cgroup.oom_kills() > 0:
                self._out_of_memory()  # while no agent was running
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(watcher)
        elif not self.tracker.status.exists():
            await self.cgroup.kill()  # it may have been about to start
            return False
        if self.spec.stdin_once and stdin_once.is_taken(self.directory):
            stdin_once.end(self.directory)
        self._open_fifos()
        self._exit = asyncio.create_task(self._watch(pidfd, None), name=f"end of container {self.spec.name}")
        return True

    async def wait(self) -> Exit:
        if self._exit is None:
            raise RuntimeFailure(f"container {self.spec.name} was not started")
        return await asyncio.shield(self._exit)

    @abstractmethod
    async def execute(self, command: Command, stdio: Stdio) -> LaunchedProcess: ...

    def check_running(self) -> int:
        """Return its first process. Raises ``RuntimeFailure`` if no command can be executed in it now."""
        self.check_not_ended()
        init = self.tracker.init()
        # Before the program runs, the namespaces may be incomplete.
        if init is None or self.tracker.program() is None:
            raise RuntimeFailure(f"container {self.spec.name} does not run")
        return init

    def check_not_ended(self) -> None:
        """Raise ``RuntimeFailure`` if it was not started, has ended as far as is known, or is paused."""
        if self._exit is None or self._exit.done():
            raise RuntimeFailure(f"container {self.spec.name} does not run")
        if self.cgroup.is_frozen():
            raise RuntimeFailure(f"container {self.spec.name} is paused")

    def open_terminal(self) -> Terminal:
        try:
            return open_terminal_inside(self.check_running(), self.pod.host_uid, self.pod.host_gid)
        except OSError as error:
            raise RuntimeFailure(f"container {self.spec.name} has no terminals: {error.strerror or error}") from error

    async def signal(self, number: int) -> None:
        pid = self.tracker.program()
        if pid is not None:
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                try:
                    if pid in self.cgroup.processes():
                        signal.pidfd_send_signal(pidfd, number)
                finally:
                    os.close(pidfd)

    async def kill(self) -> None:
        await self.cgroup.kill()

    async def pause(self) -> None:
        await self.cgroup.freeze()

    async def resume(self) -> None:
        await self.cgroup.thaw()

    async def is_paused(self) -> bool:
        return self.cgroup.is_frozen()

    async def usage(self) -> Usage:
        return self.cgroup.usage()

    def mark_ready(self) -> None:
        with suppress(OSError):  # it exists, or the container was deleted meanwhile
            descriptor = os.open(self.directory / _READY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(str(boot_ticks()))

    def background_processes(self) -> int | None:
        try:
            ready = int((self.directory / _READY).read_text())
        except (OSError, ValueError):
            return None
        found = (proc_stat(pid) for pid in self.inside())
        return sum(1 for fields in found if fields and fields[0] not in _ENDED and int(fields[START_TIME]) > ready)

    def inside(self) -> list[int]:
        """Its processes, without those of the node in its cgroup."""
        return [pid for pid in self.cgroup.processes() if pid and depth(pid) != 1]

    async def delete(self) -> None:
        if self._launching is not None:
            await asyncio.gather(self._launching, return_exceptions=True)
        await self.cgroup.kill()
        if self._exit is not None:
            await asyncio.wait([self._exit])
        self.unwatch()
        await self.cgroup.remove()
        for descriptor in (*self._fifos, self.terminal, self._their_terminal):
            if descriptor is not None:
                os.close(descriptor)
        self._fifos, self.terminal, self._their_terminal = [], None, None
        if self._disk is not None:
            self.runtime.disks.give_back(self._disk)
            self._disk = None
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _launch(self) -> None:
        self._open_fifos()
        self._memory = self.cgroup.watch_oom(self._out_of_memory)
        try:
            disk = self.spec.scratch.disk
            if disk is not None:
                self._disk = await self.runtime.disks.take(disk)
            stdio = [*await self._open_stdio(), *([] if self._disk is None else [os.dup(self._disk)])]
            try:
                child = await self.runtime.launcher.launch(self.runtime.container_request(self, stdio))
            finally:
                for descriptor in stdio:
                    os.close(descriptor)
        except BaseException:
            self.unwatch()
            raise
        self._exit = asyncio.create_task(self._watch(child.pidfd, child), name=f"end of container {self.spec.name}")

    async def _reach_program(self) -> None:
        """Wait until the runtime has set up the container and executed the program, or has failed."""
        assert self._exit is not None
        await self.runtime.clock.sleep(_FIRST_CHECK)
        interval = _CHECK_INTERVAL
        while not self.tracker.is_executed():
            if self._exit.done():
                result = self._exit.result()
                if result.message and not result.oom_killed:
                    raise RuntimeFailure(result.message)
                return  # the program has already ended
            await self.runtime.clock.sleep(interval)
            interval *= _CHECK_FACTOR

    async def _watch(self, pidfd: int, child: Child | None) -> Exit:
        """Wait for the watcher's end, then kill what is left of the container."""
        try:
            if pidfd >= 0:
                await readable(pidfd)
        finally:
            if child is not None:
                child.close()
            elif pidfd >= 0:
                os.close(pidfd)
        await self.cgroup.kill()
        status = await child.ended if child is not None else None
        oom_killed = self._ran_out.exists() or self.cgroup.oom_kills() > 0
        self.unwatch()
        code = self.tracker.exit_code()
        if code is not None:
            # Only the watcher has seen the end of an adopted container.
            return Exit(code, oom_killed, ended_at=self.tracker.ended_at() if child is None else None)
        if oom_killed or status is None or os.WIFSIGNALED(status):
            return Exit(KILLED, oom_killed)
        if os.WEXITSTATUS(status) == _SETUP_FAILED:
            return Exit(_NOT_EXECUTED, message=self._error_output() or "the program could not be executed")
        return Exit(os.WEXITSTATUS(status))  # killed before the program was executed

    def _error_output(self) -> str:
        """The error message of the runtime, if it is still in the FIFO."""
        with suppress(BlockingIOError, IndexError):
            return os.read(self._fifos[1], 4096).decode(errors="replace").strip()
        return ""

    def _open_fifos(self) -> None:
        self._fifos = [
            os.open(self.directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) for name in ("stdout", "stderr")
        ]

    def _out_of_memory(self) -> None:
        """Kill the whole container: on v1 the kernel has killed one process only."""
        self._ran_out.touch()
        with suppress(OSError):
            self.cgroup.kill_nowait()

    def unwatch(self) -> None:
        """Stop watching its memory."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    async def _open_stdio(self) -> list[int]:
        if self._their_terminal is not None:
            terminal, self._their_terminal = self._their_terminal, None
            return [terminal, os.dup(terminal), os.dup(terminal)]
        # Opened for reading and writing, so that there is always a reader: a container outlives the agent.
        both = os.O_RDWR | os.O_CLOEXEC
        if self.spec.stdin_once:
            stdin = await self._open_stdin_once()
        elif self.spec.stdin:
            stdin = os.open(self.directory / stdin_once.STDIN, both)
        else:
            stdin = os.open("/dev/null", os.O_RDONLY)
        return [stdin, os.open(self.directory / "stdout", both), os.open(self.directory / "stderr", both)]

    async def _open_stdin_once(self) -> int:
        """Open standard input and start its holder (see ``stdin_once``)."""
        ends = stdin_once.open_ends(self.directory)
        try:
            (await self.runtime.launcher.launch(stdin_once.holder(self.pod, self.cgroup, ends))).close()
        except BaseException:
            os.close(ends.reader)
            raise
        finally:
            os.close(ends.writer)
            os.close(ends.waiting)
        return ends.reader


class LaunchedProcess:
    def __init__(self, child: Child) -> None:
        self.pid = child.pid
        self._child = child
        self._code = asyncio.create_task(self._wait(), name=f"end of process {child.pid}")

    @property
    def has_ended(self) -> bool:
        return self._code.done()

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    async def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if self._child.pidfd >= 0:
                signal.pidfd_send_signal(self._child.pidfd, number)

    async def _wait(self) -> int:
        status = await self._child.ended
        if status is None:
            await readable(self._child.pidfd)
        self._child.close()
        if status is None:
            raise RuntimeFailure("the exit code is unknown: the process that started the command is gone")
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
