"""A runtime without processes: a test ends its containers and decides what commands do.

Its containers are simulated ones (``node.runtimes.simulated``) that a test controls. They need no root and outlive an
agent that restarts in the same test, so that adoption can be tested. Misuse, such as starting a container twice or
executing in a stopped one, raises.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandpool.node.cgroups.limits import Usage
from sandpool.node.runtimes.runtime import (
    Command,
    ContainerSpec,
    Exit,
    NoSuchCommand,
    PodSandbox,
    RuntimeFailure,
    Stdio,
)
from sandpool.node.runtimes.simulated import SimulatedContainer
from sandpool.node.runtimes.terminal import Terminal, open_terminal

_FIRST_PID = 1000


@dataclass(slots=True)
class FakeProcess:
    command: Command
    pid: int
    code: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def wait(self) -> int:
        return await asyncio.shield(self.code)

    async def signal(self, number: int) -> None:
        self.end(128 + number)

    def end(self, code: int) -> None:
        if not self.code.done():
            self.code.set_result(code)


def succeed(container: FakeContainer, command: Command, stdio: Stdio) -> int | None:
    """The default behaviour of a command: exit code 0."""
    return 0


class FakeRuntime:
    """``probed`` is the result of ``probe``. ``on_start`` is called with every started container; it may raise or end
    the container. ``on_execute`` returns the exit code of a command, or None if the command runs until it is killed; it
    may write to its descriptors, and raise."""

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.probed: str | None = None
        self.on_start: Callable[[FakeContainer], None] = lambda container: None
        self.on_execute: Callable[[FakeContainer, Command, Stdio], int | None] = succeed
        # Pods that are open, and the containers that were created and not deleted.
        self.open: dict[str, PodSandbox] = {}
        self.containers: dict[tuple[str, str], FakeContainer] = {}
        # Everything that was started, in order, deleted or not.
        self.started: list[FakeContainer] = []
        self._pids = _FIRST_PID

    async def probe(self) -> str | None:
        return self.probed

    async def open_pod(self, pod: PodSandbox) -> None:
        self.open[pod.uid] = pod

    async def close_pod(self, pod: PodSandbox) -> None:
        for key in [key for key in self.containers if key[0] == pod.uid]:
            await self.containers[key].delete()
        self.open.pop(pod.uid, None)

    async def create(self, pod: PodSandbox, spec: ContainerSpec) -> FakeContainer:
        if pod.uid not in self.open:
            raise AssertionError(f"pod {pod.uid} was not opened")
        if (pod.uid, spec.name) in self.containers:
            raise AssertionError(f"container {spec.name} of pod {pod.uid} exists")
        container = FakeContainer(self, pod, spec)
        self.containers[pod.uid, spec.name] = container
        return container

    async def adopt(self, pod: PodSandbox, name: str) -> FakeContainer | None:
        container = self.containers.get((pod.uid, name))
        return container if container is not None and container.was_started else None

    async def pods(self) -> set[str]:
        return set(self.open)

    async def close(self) -> None:
        pass

    def container(self, name: str, pod_uid: str | None = None) -> FakeContainer:
        """Return the container of this name, which must be unique unless the pod is given."""
        found = [c for (uid, n), c in self.containers.items() if n == name and pod_uid in (None, uid)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} containers named {name}")
        return found[0]

    def new_pid(self) -> int:
        self._pids += 1
        return self._pids


class FakeContainer(SimulatedContainer):
    """A simulated container that a test controls."""

    def __init__(self, runtime: FakeRuntime, pod: PodSandbox, spec: ContainerSpec) -> None:
        super().__init__(pod, spec)
        self.runtime = runtime
        self.signals: list[int] = []
        self.processes: list[FakeProcess] = []
        # Whether a signal other than SIGKILL is ignored.
        self.stubborn = False
        self.cpu_seconds = 0.0
        # Its processes that were started after it was ready.
        self.jobs: int | None = 0
        self.was_ready = False
        pod.directory.mkdir(parents=True, exist_ok=True)
        self.make()
        # As the container holds them, so that no reader is needed.
        self._streams = {
            name: os.open(self.directory / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            for name in ("stdout", "stderr")
        }

    async def start(self) -> None:
        if self.was_started:
            raise AssertionError(f"{self.spec.name} was started before")
        await super().start()
        self.pid = self.runtime.new_pid()
        self.runtime.started.append(self)
        try:
            self.runtime.on_start(self)
        except RuntimeFailure:
            self.was_started, self.pid = False, None
            self.runtime.started.remove(self)
            raise

    async def execute(self, command: Command, stdio: Stdio) -> FakeProcess:
        if not self.is_running:
            raise RuntimeFailure(f"container {self.spec.name} does not run")
        process = FakeProcess(command, self.runtime.new_pid())
        try:
            code = self.runtime.on_execute(self, command, stdio)
        except FileNotFoundError as error:
            raise NoSuchCommand(str(error)) from error
        self.processes.append(process)
        if code is not None:
            process.end(code)
        return process

    def open_terminal(self) -> Terminal:
        return open_terminal(os.geteuid(), os.getegid())

    async def signal(self, number: int) -> None:
        if self.is_running:
            self.signals.append(number)
        if number == signal.SIGKILL or not self.stubborn:
            await super().signal(number)

    async def usage(self) -> Usage:
        used = int(self.cpu_seconds * 1e9)
        return Usage(cpu_nanoseconds=used, memory_bytes=1 << 20, working_set_bytes=1 << 20, pids=int(self.is_running))

    def mark_ready(self) -> None:
        self.was_ready = True

    def background_processes(self) -> int | None:
        return self.jobs

    async def delete(self) -> None:
        if self.runtime.containers.get((self.pod.uid, self.spec.name)) is self:
            del self.runtime.containers[self.pod.uid, self.spec.name]
            await super().delete()
            for stream in self._streams.values():
                os.close(stream)
        else:
            await self.kill()

    def say(self, text: str, stream: str = "stdout") -> None:
        """Write output of the container."""
        with suppress(BlockingIOError):
            os.write(self._streams[stream], text.encode())

    def end(self, code: int = 0, *, oom_killed: bool = False, message: str = "", ended_at: float | None = None) -> None:
        """End the main process, and with it all others."""
        self.finish(Exit(code, oom_killed, message, ended_at))

    def finish(self, result: Exit) -> None:
        self.pid = None
        for process in self.processes:
            process.end(128 + signal.SIGKILL)
        super().finish(result)


def pod_sandbox(directory: Path, uid: str = "pod-uid", host_uid: int = 200_000) -> PodSandbox:
    """Return a pod without a network."""
    return PodSandbox(
        uid=uid, directory=directory, host_uid=host_uid, host_gid=host_uid, netns=None, hostname=f"host-{uid}"[:63]
    )
