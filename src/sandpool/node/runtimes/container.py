"""A container that was started through the launcher: its cgroup is what it is, and its trace how it is found.

How it is confined is up to the runtime; once it runs, all such containers are the same: processes in namespaces and a
cgroup, with a watcher that writes down how they end.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandpool.node.cgroups.events import OomWatch
from sandpool.node.cgroups.limits import Usage
from sandpool.node.descriptors import readable
from sandpool.node.launcher.channel import Child
from sandpool.node.runtimes import stdin_once
from sandpool.node.runtimes.runtime import Command, ContainerSpec, Exit, PodSandbox, RuntimeFailure, Stdio
from sandpool.node.runtimes.spec_codec import SPEC, spec_to_json
from sandpool.node.runtimes.terminal import Terminal, open_terminal, open_terminal_inside

if TYPE_CHECKING:
    from sandpool.node.runtimes.launched import LaunchedRuntime

# Seconds before the first and the next look whether the program was executed. Nobody tells, and to look is not free
# when many are started at once; so who takes long is looked at less and less often.
_FIRST_LOOK: Final = 0.008
_LOOK: Final = 0.004
_SLOWER: Final = 1.2
# The exit code of a container whose program could not be executed, as container runtimes give it.
_NOT_EXECUTED: Final = 128
_GAVE_UP: Final = 1  # the exit code of a watcher that could not set up the container
KILLED: Final = 128 + signal.SIGKILL


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
        # There if memory ran out: the kernel counts only what it kills itself, and we may be quicker.
        self._ran_out = self.directory / "ran-out-of-memory"
        self._beginning: asyncio.Task[None] | None = None
        # Of the FIFOs: what was written is lost when nobody has them open any more.
        self._kept: list[int] = []
        self._their_terminal: int | None = None

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
        self._beginning = asyncio.create_task(self._begin(), name=f"begin of container {self.spec.name}")
        # Once asked for it comes, whoever is no longer interested: only then can it be ended for good.
        await asyncio.shield(self._beginning)
        await self._reach_program()

    async def find(self) -> bool:
        """Take up what another process has started. False if it was never started."""
        watcher = self.tracker.watcher()
        pidfd = -1
        if watcher is not None:
            self._memory = self.cgroup.watch_oom(self._out_of_memory)
            if self.cgroup.oom_kills() > 0:
                self._out_of_memory()  # while nobody watched
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(watcher)
        elif not self.tracker.status.exists():
            await self.cgroup.kill()  # it may have been about to
            return False
        if self.spec.stdin_once and stdin_once.is_taken(self.directory):
            stdin_once.end(self.directory)
        self._keep()
        self._exit = asyncio.create_task(self._watch(pidfd, None), name=f"end of container {self.spec.name}")
        return True

    async def wait(self) -> Exit:
        if self._exit is None:
            raise RuntimeFailure(f"container {self.spec.name} was not started")
        return await asyncio.shield(self._exit)

    @abstractmethod
    async def execute(self, command: Command, stdio: Stdio) -> LaunchedProcess: ...

    def check_running(self) -> int:
        """Its first process. Raises ``RuntimeFailure`` if nothing can be executed in it now."""
        self.check_not_ended()
        init = self.tracker.init()
        # Without a program the namespaces may not be what they are going to be: those of one that was found half-made.
        if init is None or self.tracker.program() is None:
            raise RuntimeFailure(f"container {self.spec.name} does not run")
        return init

    def check_not_ended(self) -> None:
        """Raise ``RuntimeFailure`` if it was not started, has ended as far as we were told, or is paused."""
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

    async def delete(self) -> None:
        if self._beginning is not None:
            await asyncio.gather(self._beginning, return_exceptions=True)
        await self.cgroup.kill()
        if self._exit is not None:
            await asyncio.wait([self._exit])
        self.unwatch()
        await self.cgroup.remove()
        for descriptor in (*self._kept, self.terminal, self._their_terminal):
            if descriptor is not None:
                os.close(descriptor)
        self._kept, self.terminal, self._their_terminal = [], None, None
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _begin(self) -> None:
        self._keep()
        self._memory = self.cgroup.watch_oom(self._out_of_memory)
        try:
            stdio = await self._open_stdio()
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
        """Wait until bwrap has made everything and has executed the program, or has failed."""
        assert self._exit is not None
        await self.runtime.clock.sleep(_FIRST_LOOK)
        pause = _LOOK
        while not self.tracker.is_executed():
            if self._exit.done():
                result = self._exit.result()
                if result.message and not result.oom_killed:
                    raise RuntimeFailure(result.message)
                return  # it was quick
            await self.runtime.clock.sleep(pause)
            pause *= _SLOWER

    async def _watch(self, pidfd: int, child: Child | None) -> Exit:
        """Wait for the watcher's end, and see to it that nothing of the container is left after it."""
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
            # Of one that was found nobody has seen the end but its watcher.
            return Exit(code, oom_killed, ended_at=self.tracker.ended_at() if child is None else None)
        if oom_killed or status is None or os.WIFSIGNALED(status):
            return Exit(KILLED, oom_killed)
        if os.WEXITSTATUS(status) == _GAVE_UP:
            return Exit(_NOT_EXECUTED, message=self._complaint() or "the program could not be executed")
        return Exit(os.WEXITSTATUS(status))  # it was killed before it was executed

    def _complaint(self) -> str:
        """What bwrap has written before it gave up, if nobody has read it."""
        with suppress(BlockingIOError, IndexError):
            return os.read(self._kept[1], 4096).decode(errors="replace").strip()
        return ""

    def _keep(self) -> None:
        self._kept = [
            os.open(self.directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) for name in ("stdout", "stderr")
        ]

    def _out_of_memory(self) -> None:
        """On v1 the kernel has killed one process; a container that lacks one is worse than none."""
        self._ran_out.touch()
        with suppress(OSError):
            self.cgroup.kill_nowait()

    def unwatch(self) -> None:
        """No longer be told that its memory runs out."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    async def _open_stdio(self) -> list[int]:
        if self._their_terminal is not None:
            terminal, self._their_terminal = self._their_terminal, None
            return [terminal, os.dup(terminal), os.dup(terminal)]
        # Opened for both, so that there is always a reader: a container outlives who reads what it writes.
        both = os.O_RDWR | os.O_CLOEXEC
        if self.spec.stdin_once:
            stdin = await self._open_stdin_once()
        elif self.spec.stdin:
            stdin = os.open(self.directory / stdin_once.STDIN, both)
        else:
            stdin = os.open("/dev/null", os.O_RDONLY)
        return [stdin, os.open(self.directory / "stdout", both), os.open(self.directory / "stderr", both)]

    async def _open_stdin_once(self) -> int:
        """Held open by somebody else from here on."""
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
            raise RuntimeFailure("how it ended is not known: who has started it is gone")
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
