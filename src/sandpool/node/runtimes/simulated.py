"""A runtime for load tests: everything around a container is real, but the container is not a process.

A pod of this runtime is scheduled, gets its network, volumes and images, reports status, is adopted and deleted like
any other. A load test thus measures the agent and the API without the cost of programs, with more pods than the machine
could run. A pod gets this runtime only if it asks for it by name.

A container "runs" from its start until it is signalled, killed or deleted. It writes nothing, listens nowhere, and no
command can be run in it. It consists of files in its state directory, where the next agent finds it. Unlike real
containers these survive a reboot, but the agent notices that the machine was rebooted.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn
from weakref import WeakValueDictionary

from sandpool.node.cgroups.limits import Usage
from sandpool.node.runtimes.runtime import Command, ContainerSpec, Exit, PodSandbox, Process, RuntimeFailure, Stdio
from sandpool.node.runtimes.spec_codec import SPEC, spec_from_json, spec_to_json
from sandpool.node.runtimes.stdin_once import STDIN
from sandpool.node.runtimes.terminal import Terminal

SIMULATED: Final = "simulated"
#: The error of every operation that needs a process.
NOTHING_RUNS: Final = "nothing runs in a simulated container"

# A file in the directory of an open pod; no container can have this name.
_OPEN: Final = "_simulated"
# Files in the state directory of a container: it was started; it is paused; its exit code.
_STARTED: Final = "started"
_PAUSED: Final = "paused"
_ENDED: Final = "ended"
_KILLED: Final = 128 + signal.SIGKILL


class SimulatedRuntime:
    """``directory`` has the directories of all pods, named by UID. Needs no privileges."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The container objects in use in this process. ``adopt`` returns the same object, so that all see its end.
        self._held: WeakValueDictionary[Path, SimulatedContainer] = WeakValueDictionary()

    @property
    def name(self) -> str:
        return SIMULATED

    async def probe(self) -> str | None:
        return None  # always works

    async def open_pod(self, pod: PodSandbox) -> None:
        (pod.directory / _OPEN).touch()

    async def close_pod(self, pod: PodSandbox) -> None:
        for container in [each for each in self._held.values() if each.pod_uid == pod.uid]:
            await container.kill()
        (pod.directory / _OPEN).unlink(missing_ok=True)

    async def create(self, pod: PodSandbox, spec: ContainerSpec) -> SimulatedContainer:
        container = SimulatedContainer(pod, spec)
        container.make()
        self._held[container.directory] = container
        return container

    async def adopt(self, pod: PodSandbox, name: str) -> SimulatedContainer | None:
        directory = pod.directory / name
        if not (directory / _STARTED).exists():
            return None
        if (held := self._held.get(directory)) is not None:
            return held
        try:
            spec = spec_from_json(json.loads((directory / SPEC).read_bytes()))
        except (FileNotFoundError, ValueError):
            return None
        container = SimulatedContainer(pod, spec)
        container.find()
        self._held[directory] = container
        return container

    async def pods(self) -> set[str]:
        return {path.parent.name for path in self.directory.glob(f"*/{_OPEN}")}

    async def close(self) -> None:
        pass


class SimulatedContainer:
    def __init__(self, pod: PodSandbox, spec: ContainerSpec) -> None:
        self.pod = pod
        self.spec = spec
        self.directory = pod.directory / spec.name
        self.pid: int | None = None  # there never is a process
        self.terminal: int | None = None
        self.was_started = False
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    @property
    def pod_uid(self) -> str:
        return self.pod.uid

    @property
    def is_running(self) -> bool:
        return self.was_started and not self._exit.done()

    @property
    def paused(self) -> bool:
        return (self.directory / _PAUSED).exists()

    def make(self) -> None:
        self.directory.mkdir(mode=0o700)
        (self.directory / SPEC).write_text(json.dumps(spec_to_json(self.spec)))
        for name in ("stdout", "stderr", *([STDIN] if self.spec.stdin else [])):
            os.mkfifo(self.directory / name, 0o600)

    def find(self) -> None:
        """Adopt a container that another process has started."""
        self.was_started = True
        with suppress(FileNotFoundError):
            self._exit.set_result(Exit(int((self.directory / _ENDED).read_text())))

    async def start(self) -> None:
        self.was_started = True
        (self.directory / _STARTED).touch()

    async def wait(self) -> Exit:
        if not self.was_started:
            raise RuntimeFailure(f"container {self.spec.name} was not started")
        return await asyncio.shield(self._exit)

    async def execute(self, command: Command, stdio: Stdio) -> Process:
        self._refuse()

    def open_terminal(self) -> Terminal:
        self._refuse()

    async def signal(self, number: int) -> None:
        """End the container: there is no program that could handle the signal."""
        if self.is_running:
            self.finish(Exit(128 + number))

    async def kill(self) -> None:
        self.finish(Exit(_KILLED))

    async def pause(self) -> None:
        if self.is_running:
            (self.directory / _PAUSED).touch()

    async def resume(self) -> None:
        (self.directory / _PAUSED).unlink(missing_ok=True)

    async def is_paused(self) -> bool:
        return self.paused

    async def usage(self) -> Usage:
        return Usage(cpu_nanoseconds=0, memory_bytes=0, working_set_bytes=0, pids=0)

    def mark_ready(self) -> None:
        pass

    def background_processes(self) -> int | None:
        return 0

    async def delete(self) -> None:
        await self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def finish(self, result: Exit) -> None:
        """End the container with this result, unless it has ended before."""
        if self._exit.done():
            return
        with suppress(FileNotFoundError):  # deleted meanwhile
            (self.directory / _PAUSED).unlink(missing_ok=True)
            draft = self.directory / f".{_ENDED}"
            draft.write_text(str(result.code))
            draft.rename(self.directory / _ENDED)
        self._exit.set_result(result)

    def _refuse(self) -> NoReturn:
        raise RuntimeFailure(NOTHING_RUNS if self.is_running else f"container {self.spec.name} does not run")
