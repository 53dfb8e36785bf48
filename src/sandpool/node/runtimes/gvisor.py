"""The gVisor runtime: containers with a kernel of their own. See ``launcher.gvisor`` for their configuration.

The cgroup pauses, kills and measures the container as for other runtimes: gVisor's kernel and the processes on it are
in the cgroup. Single processes of the container are reached through runsc, which asks gVisor's kernel, because the host
sees them under other PIDs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sandpool.node.cgroups.group import Group
from sandpool.node.cgroups.limits import Limits
from sandpool.node.descriptors import readable
from sandpool.node.launcher.bundle import NAME
from sandpool.node.launcher.channel import Child
from sandpool.node.launcher.gvisor import STATE_FILE, runsc
from sandpool.node.launcher.rootfs import PROGRAMS
from sandpool.node.launcher.runsc_call import RunscCallRequest
from sandpool.node.launcher.spawn_container import GVISOR
from sandpool.node.runtimes.confined import ConfinedRuntime, RuntimeBinary, RuntimeUnusable
from sandpool.node.runtimes.container import KILLED, LaunchedContainer, LaunchedProcess
from sandpool.node.runtimes.process_tracker import ProcessTracker
from sandpool.node.runtimes.runtime import Command, ContainerSpec, NotExecutable, PodSandbox, RuntimeFailure, Stdio
from sandpool.node.runtimes.terminal import Terminal, open_terminal

#: The environment variable with the path of a runsc that is not in PATH, as other programs use it.
RUNSC_PATH: Final = "RUNSC_PATH"
# How gVisor may intercept system calls, the best first.
_PLATFORMS: Final = ("systrap", "ptrace")
# Host threads per process inside, and threads of gVisor itself and of calls of runsc.
_HOST_THREADS_EACH: Final = 4
_OWN_THREADS: Final = 128
# Descriptors of a call: for the PID inside, and with the process to execute.
_PID, _PROCESS = 3, 4
_RUNNING: Final = "running"
# The exit code of runsc if the fate of a command is unknown. A command may exit with it, too.
_LOST: Final = 128


class GvisorRuntime(ConfinedRuntime):
    @property
    def name(self) -> str:
        return GVISOR

    def find_binary(self) -> RuntimeBinary:
        path = os.environ.get(RUNSC_PATH) or shutil.which("runsc")
        if path is None or not os.access(path, os.X_OK):
            raise RuntimeUnusable("runsc is not installed")
        real = Path(path).resolve()
        return RuntimeBinary(real.parent, real.name, _version(real), GVISOR, _PLATFORMS[0])

    async def probe(self) -> str | None:
        failure = await super().probe()
        for platform in _PLATFORMS[1:]:
            if failure is not None and self._confiner is not None:
                self._confiner = replace(self._confiner, platform=platform)
                failure = await super().probe()
        return failure

    def tracker(self, status: Path, cgroup: Group) -> ProcessTracker:
        return GvisorProcessTracker(status, cgroup)

    def limits(self, limits: Limits) -> Limits:
        """Limits of the cgroup: a process inside is up to four of the host's. gVisor's kernel limits those inside."""
        return limits if limits.pids is None else replace(limits, pids=limits.pids * _HOST_THREADS_EACH + _OWN_THREADS)

    def container(self, pod: PodSandbox, spec: ContainerSpec) -> LaunchedContainer:
        return GvisorContainer(self, pod, spec)


class GvisorContainer(LaunchedContainer):
    def __init__(self, runtime: GvisorRuntime, pod: PodSandbox, spec: ContainerSpec) -> None:
        super().__init__(runtime, pod, spec)
        self._runsc = f"{PROGRAMS}/{runtime.binary.program}"
        self._ending: set[asyncio.Task[None]] = set()  # of commands whose callers have gone

    async def execute(self, command: Command, stdio: Stdio) -> GvisorProcess:
        self.check_running()
        copies = [os.dup(descriptor) for descriptor in (stdio.stdin, stdio.stdout, stdio.stderr)]
        execution = asyncio.create_task(self._execute(command, copies), name=f"command in {self.spec.name}")
        try:
            return await asyncio.shield(execution)
        except asyncio.CancelledError:
            # Continue until the PID inside is known: only then can the command be killed.
            ending = asyncio.create_task(_kill_when_started(execution), name=f"unwanted command in {self.spec.name}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            raise

    async def _execute(self, command: Command, stdio: list[int]) -> GvisorProcess:
        """Execute a command and close the descriptors."""
        arguments = ("exec", f"--process=/proc/self/fd/{_PROCESS}", f"--internal-pid-file=/proc/self/fd/{_PID}", NAME)
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            try:
                child = await self._launch_call(self._process(command), [*stdio, theirs], *arguments)
            finally:
                for descriptor in (*stdio, theirs):
                    os.close(descriptor)
            await readable(ours)  # the PID, or the end of the pipe because the call has failed
            pid = os.read(ours, 32)
        finally:
            os.close(ours)
        if not pid:
            await child.ended
            child.close()
            self.check_running()
            raise NotExecutable(f'exec: "{command.argv[0]}": permission denied')
        return GvisorProcess(self, child, int(pid))

    def background_processes(self) -> int | None:
        return None  # they are processes of gVisor's kernel, which this kernel does not see

    def open_terminal(self) -> Terminal:
        """A terminal of the host: those of gVisor's kernel cannot be opened from outside."""
        self.check_running()
        return open_terminal(self.pod.host_uid, self.pod.host_gid)

    async def signal(self, number: int) -> None:
        await self.send(number)

    async def send(self, number: int, *which: str) -> None:
        """Send a signal through the container's kernel. Does nothing if the process has ended."""
        await self.call("kill", *which, NAME, str(number))

    async def call(self, *arguments: str) -> bool:
        """Run a command of runsc about the container. Returns False if it fails."""
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            child = await self._launch_call({}, [nothing] * 3, *arguments)
        except RuntimeFailure:
            return False  # the container has ended
        finally:
            os.close(nothing)
        try:
            return await child.ended == 0
        finally:
            child.close()

    async def _launch_call(self, process: dict[str, Any], stdio: list[int], *arguments: str) -> Child:
        watcher = self.tracker.watcher()
        if watcher is None:
            raise RuntimeFailure(f"container {self.spec.name} does not run")
        return await self.runtime.launcher.launch(
            RunscCallRequest(
                pid=watcher,
                cgroup=self.cgroup.path,
                join_files=[str(file) for file in self.cgroup.join_files()],
                argv=runsc(self._runsc, *arguments),
                process=process,
                stdio=stdio,
                filter=b"",
            )
        )

    def _process(self, command: Command) -> dict[str, Any]:
        spec = self.spec
        env = spec.env if command.env is None else command.env
        return {
            "terminal": command.tty,
            "user": {"uid": spec.uid, "gid": spec.gid},
            "args": list(command.argv),
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": spec.cwd if command.cwd is None else command.cwd,
            "capabilities": {},
            "noNewPrivileges": True,
        }


class GvisorProcess(LaunchedProcess):
    """``pid`` is that of runsc on the host, ``inner`` that of the process in the container."""

    def __init__(self, container: GvisorContainer, child: Child, inner: int) -> None:
        super().__init__(child)
        self.container = container
        self.inner = inner

    async def signal(self, number: int) -> None:
        if not self.has_ended:  # afterwards the PID may be reused
            await self.container.send(number, f"--pid={self.inner}")

    async def _wait(self) -> int:
        code = await super()._wait()
        if code == _LOST and not await self.container.call("ps", NAME):
            return KILLED  # together with the container's kernel
        return code


async def _kill_when_started(execution: asyncio.Task[GvisorProcess]) -> None:
    with suppress(RuntimeFailure):  # it was not started, or its container has ended
        process = await execution
        await process.signal(signal.SIGKILL)
        await process.wait()


class GvisorProcessTracker(ProcessTracker):
    """The watcher is the shell that runs runsc. To the host, *init* and the program are one process: the container's
    kernel. runsc writes its state to a file in the root directory of the watcher."""

    def watcher(self) -> int | None:
        pid = self._reported("watcher")
        return pid if pid is not None and pid in self.cgroup.processes() else None

    def init(self) -> int | None:
        pid = (self._state().get("sandbox") or {}).get("pid")
        return pid if pid in self.cgroup.processes() else None

    def program(self) -> int | None:
        return self.init() if self.is_executed() else None

    def is_executed(self) -> bool:
        return self._state().get("status") == _RUNNING

    def _state(self) -> dict[str, Any]:
        watcher = self.watcher()
        if watcher is not None:
            with suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads(Path(f"/proc/{watcher}/root{STATE_FILE}").read_bytes())
                return found
        return {}


def _version(path: Path) -> tuple[int, ...]:
    """The version, which is a date."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeUnusable(f"{path} does not say its version: {error}") from error
    found = re.search(r"20\d{6}", output)
    return (int(found.group()),) if found else ()
