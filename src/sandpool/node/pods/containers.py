"""Creates, starts and ends the containers of one pod."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Final

from sandpool.api.resource import Object, SharedObject
from sandpool.engine.clock import timestamp
from sandpool.kube.errors import NotFound
from sandpool.node.pods.checkpoint import Run, boot_id, read_run
from sandpool.node.pods.container_spec import build_container_spec
from sandpool.node.pods.context import NodeContext
from sandpool.node.pods.downward import PodPlacement
from sandpool.node.pods.environment import EnvironmentSources, Source, environment, sources_of
from sandpool.node.pods.interfaces import MESSAGES, Image, PodVolumes
from sandpool.node.pods.memory_files import storage_limit, wants_disk
from sandpool.node.pods.spec import Container, Pod
from sandpool.node.pods.state import COMPLETED, ERROR, OOM_KILLED, START_ERROR, Moment, Termination
from sandpool.node.runtimes.runtime import Bind, Exit, Mount, PodSandbox, Runtime, Scratch
from sandpool.node.runtimes.runtime import Container as Running
from sandpool.node.runtimes.simulated import SIMULATED

# Names no container can have.
VOLUMES: Final = "_volumes"
_LOGS: Final = "_logs"

_LONGEST_MESSAGE: Final = 4096
_FALLBACK_LENGTH: Final = 2048
_DEFAULT_MESSAGE_PATH: Final = "/dev/termination-log"


def log_directory(pod: Path, container: str) -> Path:
    """Return the log directory of a container, shared by all its runs."""
    return pod / _LOGS / container


class Containers:
    """``running`` holds the containers by name as their runtime knows them: those that run, and those that ended and
    have not been replaced."""

    def __init__(
        self,
        context: NodeContext,
        runtime: Runtime,
        sandbox: PodSandbox,
        volumes: PodVolumes,
        addresses: tuple[str, ...],
    ) -> None:
        self.context = context
        self.runtime = runtime
        self.sandbox = sandbox
        self.volumes = volumes
        self.addresses = addresses
        self.running: dict[str, Running] = {}
        self._signals: dict[str, int] = {}

    async def image(self, pod: Pod, container: Container) -> Image:
        return await self.context.images.resolve(container.image, container.pull_policy, pod.object)

    async def create(self, pod: Pod, container: Container, image: Image) -> None:
        """Do everything but the start. Raises ``ConfigError``, ``VolumeFailure`` or ``RuntimeFailure``."""
        before = self.running.pop(container.name, None)
        if before is not None:
            await before.delete()
        # Left by an earlier run if the runtime lost its containers, for example in a reboot.
        shutil.rmtree(self.sandbox.directory / container.name, ignore_errors=True)
        env = await self._environment(pod, container.spec)
        mounts = (*self.volumes.mounts(container.spec, env), self._message_mount(container))
        called, pids = self.sandbox.hostname, self.context.options.pids
        scratch = await self._scratch(pod, container.spec)
        spec = build_container_spec(
            pod.object, container, image, env, mounts, hostname=called, pids=pids, scratch=scratch
        )
        self._signals[container.name] = _signal(container.stop_signal or image.stop_signal)
        self.running[container.name] = await self.runtime.create(self.sandbox, spec)

    async def start(self, container: Container, image: Image, restarts: int) -> str:
        """Start a created container and return its ID. Raises ``RuntimeFailure``."""
        container_id = f"{self.context.rng.getrandbits(256):064x}"
        run = Run(container_id, image.id, restarts, timestamp(self.context.clock.now()), boot_id())
        run.write(self.sandbox.directory, container.name)
        running = self.running[container.name]
        await running.start()
        # After the start: only now there is a terminal, and on failure the runtime itself reads the error output.
        self.context.logs.follow(running, self.log_directory(container.name), restarts)
        return container_id

    async def adopt(self, container: Container) -> tuple[Running, Run] | None:
        """The container as an earlier agent left it; None if there is none."""
        run = read_run(self.sandbox.directory, container.name)
        if run is None or run.is_of_another_boot:
            return None
        found = await self.runtime.adopt(self.sandbox, container.name)
        if found is None:
            return None
        self.running[container.name] = found
        self.context.logs.follow(found, self.log_directory(container.name), run.restarts)
        return found, run

    async def termination(self, container: Container, since: Moment | None, container_id: str) -> Termination:
        """Wait for a container to end and return how it ended."""
        running = self.running[container.name]
        result = await running.wait()
        await self.context.logs.finish(running)
        now = Moment(self.context.clock.monotonic(), self.context.clock.now())
        message = result.message or await self._message(container, running, result)
        finished = now if result.ended_at is None else _earlier(now, result.ended_at, since)
        began = None if since is None else since.time
        return Termination(result.code, _reason(result), finished, began, message, container_id=container_id)

    async def signal(self, name: str) -> None:
        """Send a container the stop signal of its spec or image."""
        await self.running[name].signal(self._signals.get(name, SIGTERM))

    def log_directory(self, name: str) -> Path:
        return log_directory(self.sandbox.directory, name)

    async def _scratch(self, pod: Pod, spec: Object) -> Scratch | None:
        """Return the disk for the writes of a container to its root; None if they are kept in memory."""
        disks = self.context.root_disks
        if disks is None or self.runtime.name == SIMULATED or not wants_disk(pod.object, spec):
            return None
        size = storage_limit(spec) or disks.default_size
        return Scratch(size, disk=await disks.image(size))

    async def _environment(self, pod: Pod, spec: Object) -> dict[str, str]:
        wanted = sorted(sources_of(spec), key=lambda source: (source.type.kind, source.name))
        found = await asyncio.gather(*(self._source(source, pod.key.namespace) for source in wanted))
        settings, network = self.context.options, self.context.network
        links = pod.object["spec"].get("enableServiceLinks")
        around = EnvironmentSources(
            pod.object,
            PodPlacement(settings.node_name, network.host_addresses, self.addresses),
            self.context.allocatable,
            dict(zip(wanted, found, strict=True)),
            self.context.service_links(pod.key.namespace, links is None or links),
        )
        return environment(spec, around)

    async def _source(self, source: Source, namespace: str) -> SharedObject | None:
        try:
            return await self.context.client.get(source.type, source.name, namespace)
        except NotFound:
            return None

    # -- termination messages --------------------------------------------------------------------------------------

    def _message_mount(self, container: Container) -> Mount:
        """Return the mount of an empty file for the termination message."""
        file = self._message_file(container.name)
        file.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        file.write_bytes(b"")
        if os.geteuid() == 0:
            os.chown(file, self.sandbox.host_uid, self.sandbox.host_gid)
        target = container.spec.get("terminationMessagePath") or _DEFAULT_MESSAGE_PATH
        return Bind(file, target, optional=True)

    def _message_file(self, name: str) -> Path:
        return self.sandbox.directory / VOLUMES / MESSAGES / name

    async def _message(self, container: Container, running: Running, result: Exit) -> str:
        text = b""
        with suppress(OSError), self._message_file(container.name).open("rb") as file:
            text = file.read(_LONGEST_MESSAGE)
        fallback = container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not text and fallback and result.code != 0:
            text = await self.context.logs.tail(running, _FALLBACK_LENGTH)
        return text.decode(errors="replace")


def _reason(result: Exit) -> str:
    if result.oom_killed:
        return OOM_KILLED
    if result.message:
        return START_ERROR
    return COMPLETED if result.code == 0 else ERROR


def _earlier(now: Moment, ended_at: float, since: Moment | None) -> Moment:
    """Return the moment of an end. The wall clock may have been set meanwhile, so the result is clamped between the
    start of the run and now."""
    age = max(now.time.timestamp() - ended_at, 0.0)
    if since is not None:
        age = min(age, max((now.time - since.time).total_seconds(), 0.0))
    return Moment(now.at - age, now.time - timedelta(seconds=age))


def _signal(name: str) -> int:
    """Return the number of a signal given by name or number; SIGTERM if it is unknown."""
    if name.isdecimal():
        return int(name)
    known: Mapping[str, Signals] = Signals.__members__
    return known.get(name if name.startswith("SIG") else f"SIG{name}", SIGTERM) if name else SIGTERM
