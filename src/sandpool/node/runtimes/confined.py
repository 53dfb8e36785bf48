"""What runtimes have in common whose containers are processes in namespaces, started through the launcher."""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from sandpool.engine.clock import Clock
from sandpool.node.cgroups.mounts import NoCgroups
from sandpool.node.cgroups.tree import Cgroup, Cgroups
from sandpool.node.launcher.birth import Birth
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.runtimes import selftest
from sandpool.node.runtimes.container import ConfinedContainer
from sandpool.node.runtimes.record import spec_from_json
from sandpool.node.runtimes.runtime import ContainerSpec, PodSandbox
from sandpool.node.runtimes.seccomp import NoFilter, program
from sandpool.node.runtimes.trace import Trace


class Unusable(Exception):
    """The program that confines is not there or is not to be trusted. The message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Confiner:
    """``program`` is a path in ``directory``, which also holds what libraries of its own the program has. ``kind`` is
    how it wants to be called (see ``launcher.birth``)."""

    directory: Path
    program: str
    version: tuple[int, ...]
    kind: str


class ConfinedRuntime(ABC):
    """``cgroups`` and ``launcher`` may be shared with other runtimes; closing them is up to who made them. What the
    self-test needs is made in ``directory``."""

    def __init__(self, cgroups: Cgroups, launcher: LauncherClient, clock: Clock, *, directory: Path) -> None:
        self.cgroups = cgroups
        self.launcher = launcher
        self.clock = clock
        self.directory = directory
        self._confiner: Confiner | None = None

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def find_confiner(self) -> Confiner:
        """Raises ``Unusable``."""

    @abstractmethod
    def trace(self, status: Path, cgroup: Cgroup) -> Trace: ...

    @property
    def confiner(self) -> Confiner:
        if self._confiner is None:
            self._confiner = self.find_confiner()
        return self._confiner

    async def probe(self) -> str | None:
        if os.geteuid() != 0:
            return f"{self.name} sandboxes with limits and users of their own are made by root only"
        try:
            program()
            version = await asyncio.to_thread(lambda: self.confiner.version)
            self.cgroups.check()
        except (NoFilter, NoCgroups, Unusable) as error:
            return str(error)
        failure = await selftest.run(self, self.directory)
        return failure and f"{self.name} {'.'.join(map(str, version))}: {failure}"

    async def open_pod(self, pod: PodSandbox) -> None:
        self.cgroups.group(pod.uid).create(pod.limits)

    async def close_pod(self, pod: PodSandbox) -> None:
        await self.cgroups.group(pod.uid).remove()

    async def create(self, pod: PodSandbox, spec: ContainerSpec) -> ConfinedContainer:
        container = ConfinedContainer(self, pod, spec)
        container.make()
        return container

    async def adopt(self, pod: PodSandbox, name: str) -> ConfinedContainer | None:
        try:
            spec = spec_from_json(json.loads((pod.directory / name / "spec.json").read_bytes()))
        except (FileNotFoundError, ValueError):
            return None
        container = ConfinedContainer(self, pod, spec)
        return container if await container.find() else None

    async def pods(self) -> set[str]:
        return set(self.cgroups.group().children())

    async def close(self) -> None:  # noqa: B027 - there is nothing to release, and that is all there is to say
        pass

    def birth(self, container: ConfinedContainer, stdio: list[int]) -> Birth:
        confiner = self.confiner
        return Birth(
            pod=container.pod,
            spec=container.spec,
            entrances=[str(file) for file in container.cgroup.entrances()],
            programs=confiner.directory,
            program=confiner.program,
            kind=confiner.kind,
            status=str(container.trace.status),
            stdio=stdio,
            filter=b"",
        )
