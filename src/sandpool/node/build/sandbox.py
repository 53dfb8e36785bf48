"""The sandbox that runs the commands of a build: isolated like every other, with a network of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandpool.api.resource import Object
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.node.build.recipe import BuildFailure, NeedsRoot
from sandpool.node.cgroups.hierarchy import Cgroups
from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.mounts import NoCgroups, discover
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.network.cluster_dns import OutsideClusterDomain
from sandpool.node.network.dns import name_servers
from sandpool.node.network.pod_cidr import NoPodCidrAvailable, choose_pod_cidr
from sandpool.node.network.routed import NetworkUnavailable, RoutedNetwork, RoutedNetworkOptions
from sandpool.node.pods.interfaces import NetworkFailure
from sandpool.node.runtimes.bwrap import BwrapRuntime
from sandpool.node.runtimes.runtime import (
    ContainerSpec,
    HostToolchain,
    ImageLayers,
    Mount,
    PodSandbox,
    RuntimeFailure,
    Scratch,
)

_log = logging.getLogger(__name__)

#: The host user of builds: one that no pod has. Builds at the same time have different ones.
_FIRST_USER: Final = 900_000_000
_PIDS: Final = 4096
_FILES: Final = 65536
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class StepCommand:
    words: tuple[str, ...]
    root: HostToolchain | ImageLayers
    env: Mapping[str, str]
    cwd: str
    uid: int
    gid: int
    mounts: tuple[Mount, ...]
    scratch: Path  # an empty directory; what the command writes is then in ``upper``


class BuildSandbox:
    """``directory`` is for its own files. ``warn`` is told once if there is no network. A build without commands starts
    nothing."""

    def __init__(self, directory: Path, clock: Clock, warn: Callable[[str], None]) -> None:
        self.directory = directory
        self.clock = clock
        self.warn = warn
        self.host_user = _FIRST_USER + os.getpid()
        self._launcher: LauncherClient | None = None
        self._runtime: BwrapRuntime | None = None
        self._cgroups: Cgroups | None = None
        self._network: RoutedNetwork | None = None
        self._pod: PodSandbox | None = None

    async def run(self, command: StepCommand, output: Callable[[bytes], None]) -> int:
        """Run a command to its end and return its exit code. ``output`` receives what it writes. Raises
        ``BuildFailure``."""
        try:
            pod = self._pod or await self._start()
            assert self._runtime is not None
            container = await self._runtime.create(
                pod,
                ContainerSpec(
                    "step",
                    command.words,
                    env=command.env,
                    cwd=command.cwd,
                    uid=command.uid,
                    gid=command.gid,
                    root=command.root,
                    scratch=Scratch(directory=command.scratch),
                    mounts=command.mounts,
                    limits=Limits(pids=_PIDS),
                    nofile=_FILES,
                ),
            )
            readers = [
                os.open(container.directory / name, os.O_RDONLY | os.O_NONBLOCK) for name in ("stdout", "stderr")
            ]
            loop = asyncio.get_running_loop()
            for reader in readers:
                loop.add_reader(reader, _read, reader, output)
            try:
                await container.start()
                return (await container.wait()).code
            finally:
                for reader in readers:
                    loop.remove_reader(reader)
                    _read(reader, output)
                    os.close(reader)
                await container.delete()
        except RuntimeFailure as error:
            raise BuildFailure(str(error)) from error

    async def close(self) -> None:
        if self._runtime is not None and self._pod is not None:
            await self._runtime.close_pod(self._pod)
            await self._runtime.close()
        if self._network is not None:
            await self._network.stop()
        if self._cgroups is not None:
            await self._cgroups.group().remove()
            self._cgroups.close()
        if self._launcher is not None:
            self._launcher.close()
        if self._pod is not None:
            await asyncio.to_thread(shutil.rmtree, self._pod.directory.parent, ignore_errors=True)

    async def _start(self) -> PodSandbox:
        if os.geteuid() != 0:
            raise NeedsRoot("commands of a build run as root only")
        try:
            self._cgroups = Cgroups(discover(), f"sandpool-build-{os.getpid()}")
        except NoCgroups as error:
            raise BuildFailure(str(error)) from error
        self.directory.mkdir(parents=True, exist_ok=True)
        place = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self.directory))
        await asyncio.to_thread(place.chmod, 0o711)
        self._launcher = LauncherClient()
        self._runtime = BwrapRuntime(self._cgroups, self._launcher, self.clock, directory=place / "selftest")
        if (why := await self._runtime.probe()) is not None:
            raise BuildFailure(f"commands cannot be run in a sandbox here: {why}")
        (place / "pod").mkdir()
        netns, resolver = await self._connect(place)
        self._pod = PodSandbox(
            "build", place / "pod", self.host_user, self.host_user, netns, "build", resolv_conf=resolver
        )
        await self._runtime.open_pod(self._pod)
        return self._pod

    async def _connect(self, place: Path) -> tuple[Path | None, str]:
        """Return a network namespace with access to what this machine can reach, and the text of /etc/resolv.conf."""
        nothing: Cache[Object] = Cache(lambda found: found, name="no policies")
        try:
            pods = await asyncio.to_thread(choose_pod_cidr, place, None)
            network = RoutedNetwork(
                RoutedNetworkOptions(
                    place / "network",
                    pods,
                    f"b{os.getpid()}",
                    resolve=_resolve_nothing,
                    name_servers=name_servers(),
                ),
                nothing,
                nothing,
                self.clock,
            )
            await network.start()
            self._network = network
            pod = {"metadata": {"uid": "build", "name": "build", "namespace": "default"}, "spec": {"containers": []}}
            attached = await network.attach(pod)
        except (NetworkUnavailable, NoPodCidrAvailable, NetworkFailure, OSError) as error:
            self.warn(f"the build has no network: {error}")
            return None, ""
        servers = "".join(f"nameserver {address}\n" for address in network.nameservers)
        return attached.netns, servers


def _resolve_nothing(name: str) -> list[str] | None:
    raise OutsideClusterDomain


def _read(descriptor: int, output: Callable[[bytes], None]) -> None:
    with suppress(BlockingIOError):
        while data := os.read(descriptor, _CHUNK):
            output(data)
