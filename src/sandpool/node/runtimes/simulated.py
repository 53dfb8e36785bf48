"""A runtime for load tests: everything around a container is real, and the container is no process.

A pod of this runtime is scheduled, gets its network, its volumes and its images, reports, is adopted and goes as any
other does. So what an agent and an API can bear is measured without what programs use up, and with more pods than a
machine could run. It is never chosen for a pod that does not ask for it by name.

A container "runs" from its start until it is signalled, killed or deleted, and does nothing: it writes nothing, listens
nowhere, and no command can be run in it. All there is of it are files in its state directory, where another agent finds
it again. What does not survive a reboot elsewhere does so here, but the agent knows that the machine was started anew.
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
#: What is said wherever somebody might take it for more than it is.
NOTHING_RUNS: Final = "nothing runs in a simulated container"

# In the directory of a pod that is open; no container can have this name.
_OPEN: Final = "_simulated"
# In the state directory of a container: there once it was started; while it is paused; the code it ended with.
_STARTED: Final = "started"
_PAUSED: Final = "paused"
_ENDED: Final = "ended"
_KILLED: Final = 128 + signal.SIGKILL


class SimulatedRuntime:
    """``directory`` has the directories of all pods, named by their UIDs. Needs no privileges."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Those that somebody in this process holds. Whoever looks for one gets the same, or would not learn its end.
        self._held: WeakValueDictionary[Path, SimulatedContainer] = WeakValueDictionary()

    @property
    def name(self) -> str:
        return SIMULATED

    async def probe(self) -> str | None:
        return None  # there is nothing that could fail

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
        self.pid: int | None = None  # for good: there is no process
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
        """Take up what another process has started."""
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
        """Whichever it is, it is meant to end it; there is no program that could think otherwise."""
        if self.is_running:
            self.conclude(Exit(128 + number))

    async def kill(self) -> None:
        self.conclude(Exit(_KILLED))

    async def pause(self) -> None:
        if self.is_running:
            (self.directory / _PAUSED).touch()

    async def resume(self) -> None:
        (self.directory / _PAUSED).unlink(missing_ok=True)

    async def is_paused(self) -> bool:
        return self.paused

    async def usage(self) -> Usage:
        return Usage(cpu_nanoseconds=0, memory_bytes=0, working_set_bytes=0, pids=0)

    async def delete(self) -> None:
        await self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def conclude(self, exit: Exit) -> None:
        """Let it have ended, unless it has before."""
        if self._exit.done():
            return
        with suppress(FileNotFoundError):  # it was deleted
            (self.directory / _PAUSED).unlink(missing_ok=True)
            draft = self.directory / f".{_ENDED}"
            draft.write_text(str(exit.code))
            draft.rename(self.directory / _ENDED)
        self._exit.set_result(exit)

    def _refuse(self) -> NoReturn:
        raise RuntimeFailure(NOTHING_RUNS if self.is_running else f"container {self.spec.name} does not run")
