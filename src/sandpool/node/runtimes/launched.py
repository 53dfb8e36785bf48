"""What runtimes have in common whose containers are processes started through the launcher, confined or not."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path

from sandpool.engine.clock import Clock
from sandpool.node.cgroups.group import Group, Groups
from sandpool.node.cgroups.limits import Limits
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.spawn_container import ContainerRequest
from sandpool.node.launcher.unconfined import UnconfinedRequest
from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.process_tracker import ProcessTracker
from sandpool.node.runtimes.runtime import ContainerSpec, PodSandbox
from sandpool.node.runtimes.spec_codec import SPEC, spec_from_json


class LaunchedRuntime(ABC):
    """``cgroups`` and ``launcher`` may be shared with other runtimes; closing them is up to who made them. What the
    self-test needs is made in ``directory``."""

    def __init__(self, cgroups: Groups, launcher: LauncherClient, clock: Clock, *, directory: Path) -> None:
        self.cgroups = cgroups
        self.launcher = launcher
        self.clock = clock
        self.directory = directory

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    async def probe(self) -> str | None: ...

    @abstractmethod
    def tracker(self, status: Path, cgroup: Group) -> ProcessTracker: ...

    @abstractmethod
    def container_request(self, container: LaunchedContainer, stdio: list[int]) -> ContainerRequest | UnconfinedRequest:
        """The order for a container."""

    def limits(self, limits: Limits) -> Limits:
        """What a cgroup is given, if that is more than what was asked for."""
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

    async def close(self) -> None:  # noqa: B027 - there is nothing to release, and that is all there is to say
        pass
