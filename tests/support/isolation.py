"""A rig for tests with real sandboxes: everything a runtime needs, and a check that nothing is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from itertools import count
from pathlib import Path

from sandpool.engine.clock import SystemClock
from sandpool.node.cgroups.hierarchy import Cgroups
from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.mounts import discover
from sandpool.node.launcher.bundle import ROOTS
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.runtimes.bwrap import BwrapRuntime
from sandpool.node.runtimes.confined import ConfinedRuntime, RuntimeUnusable
from sandpool.node.runtimes.container import LaunchedRuntime
from sandpool.node.runtimes.gvisor import RUNSC_PATH, GvisorRuntime
from sandpool.node.runtimes.oci import RUNC_PATH, CrunRuntime, RuncRuntime
from sandpool.node.runtimes.runtime import Command, Container, ContainerSpec, Exit, PodSandbox, Process, Stdio

# Every process of the machine that makes sandboxes has its own users: pytest-xdist runs several.
_FIRST_UID = 300_000
_UIDS_EACH = 1_000
# Timeout in seconds of waits that are expected to fail.
_TIMEOUT = 120.0
# Every runtime with real sandboxes, by name.
RUNTIMES: dict[str, type[ConfinedRuntime]] = {
    "bwrap": BwrapRuntime,
    "crun": CrunRuntime,
    "runc": RuncRuntime,
    "gvisor": GvisorRuntime,
}
# Runtimes whose sandboxes take a second or more: only their specific tests are among the fast ones.
SLOW = ("gvisor",)
# Runtimes that are built from source, only by `make test-long` and CI.
BUILT = ("runc", "gvisor")
_BUILDERS = Path(__file__).parents[2] / "dev"
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Remains:
    """Resources of the machine that sandboxes leave behind if they are not cleaned up."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    descriptors: int

    @classmethod
    def of(cls, rig: str, uids: range) -> Remains:
        return cls(
            processes=frozenset(name for uid, name in processes() if uid in uids or uid - ROOTS in uids),
            mounts=frozenset(
                line
                for line in Path("/proc/self/mountinfo").read_text().splitlines()
                if any(mark in line for mark in (rig, " tmpfs stage ", " tmpfs sandbox "))
            ),
            cgroups=frozenset(glob(f"/sys/fs/cgroup/*/{rig}") + glob(f"/sys/fs/cgroup/{rig}")),
            descriptors=len(os.listdir("/proc/self/fd")),
        )


@dataclass(slots=True)
class Captured:
    """The output of a container, read as it arrives."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, text: str) -> str:
        """Wait until standard output contains this text."""
        async with asyncio.timeout(_TIMEOUT):
            while text.encode() not in self.stdout:
                self.more.clear()
                await self.more.wait()
        return self.stdout.decode(errors="replace")


class Rig:
    """Real pods and containers of one runtime, and ways to inspect them."""

    def __init__(
        self, name: str, directory: Path, cgroups: Cgroups, launcher: LauncherClient, runtime: LaunchedRuntime
    ) -> None:
        self.name = name
        self.directory = directory
        self.cgroups = cgroups
        self.launcher = launcher
        self.runtime = runtime
        self.uids = _uids()
        self._numbers = count(1)
        self._pods: dict[str, PodSandbox] = {}
        self._containers: list[Container] = []
        self._processes: list[Process] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self._captured: dict[Container, Captured] = {}
        self._open: list[int] = []

    @property
    def has_own_kernel(self) -> bool:
        """Whether programs inside use a kernel other than the host's."""
        return isinstance(self.runtime, GvisorRuntime)

    async def pod(
        self, *, netns: Path | None = None, limits: Limits | None = None, hostname: str = "box"
    ) -> PodSandbox:
        """Open a pod with its own directory."""
        number = next(self._numbers)
        directory = self.directory / f"pod-{number}"
        directory.mkdir()
        uid = self.uids[number % len(self.uids)]
        pod = PodSandbox(f"pod-{number}", directory, uid, uid, netns, hostname, limits=limits or Limits())
        await self.runtime.open_pod(pod)
        self._pods[pod.uid] = pod
        return pod

    async def start(
        self,
        *argv: str,
        pod: PodSandbox | None = None,
        name: str = "main",
        env: Mapping[str, str] | None = None,
        captured: bool = True,
        **spec: object,
    ) -> Container:
        """Start a container, in a new pod unless one is given."""
        wanted = ContainerSpec(name, argv, env={**_ENV, **(env or {})}, **spec)  # type: ignore[arg-type]
        container = await self.runtime.create(pod or await self.pod(), wanted)
        self._containers.append(container)
        if captured:
            self.capture(container)
        await container.start()
        return container

    def network(self) -> Path:
        """Create a network namespace as the node creates them for pods: owned by root and empty."""
        process = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE)
        self._holders.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return Path(f"/proc/{process.pid}/ns/net")

    def capture(self, container: Container) -> Captured:
        captured = self._captured[container] = Captured()
        for name in ("stdout", "stderr"):
            descriptor = os.open(container.directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._open.append(descriptor)
            asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor, captured, name)
        return captured

    def output_of(self, container: Container) -> Captured:
        return self._captured[container]

    async def run(self, *argv: str, **spec: object) -> tuple[Exit, str, str]:
        """Run a program in a container. Returns its result and its output."""
        container = await self.start(*argv, **spec)  # type: ignore[arg-type]
        result = await container.wait()
        captured = self._captured[container]
        self.drain(container)
        await container.delete()
        return result, captured.stdout.decode(errors="replace"), captured.stderr.decode(errors="replace")

    async def execute(
        self, container: Container, *argv: str, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> tuple[int, str]:
        """Run a command in a container. Returns its exit code and its output."""
        reader, writer = os.pipe()
        nothing = os.open("/dev/null", os.O_RDONLY)
        try:
            process = await container.execute(Command(argv, env=env, cwd=cwd), Stdio(nothing, writer, writer))
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(nothing)
            os.close(writer)
        self._processes.append(process)
        return await self._output(process, reader)

    async def close(self) -> None:
        for container in self._containers:
            await container.delete()
        for pod in self._pods.values():
            await self.runtime.close_pod(pod)
        await asyncio.gather(*(process.wait() for process in self._processes), return_exceptions=True)
        for descriptor in self._open:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        for holder in self._holders:
            holder.kill()
            holder.communicate()
        await self.runtime.close()
        await self.cgroups.group().remove()
        # What watches over containers sees their end at the next turns of the loop.
        for _ in range(10):
            await asyncio.sleep(0)

    def _read(self, descriptor: int, captured: Captured, name: str) -> None:
        with suppress(BlockingIOError):
            data = os.read(descriptor, 1 << 20)
            if data:
                getattr(captured, name).extend(data)
                captured.more.set()
            else:
                asyncio.get_running_loop().remove_reader(descriptor)

    def drain(self, container: Container) -> Captured:
        """Return the remaining output after all writers have ended."""
        captured = self._captured.setdefault(container, Captured())
        for name in ("stdout", "stderr"):
            descriptor = os.open(container.directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with suppress(BlockingIOError):
                while data := os.read(descriptor, 1 << 20):
                    getattr(captured, name).extend(data)
            os.close(descriptor)
        return captured

    async def _output(self, process: Process, reader: int) -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader))
        try:
            return await process.wait(), (await stream.read()).decode(errors="replace")
        finally:
            transport.close()


class NotHere(Exception):
    """This machine lacks the runtime."""


@asynccontextmanager
async def rig(runtime: type[LaunchedRuntime] = BwrapRuntime) -> AsyncIterator[Rig]:
    """Yield a rig. Raises AssertionError at the end if a process, mount, cgroup or descriptor is left, and ``NotHere``
    at once if the program of the runtime is not installed."""
    if runtime is GvisorRuntime:
        point_to_built("runsc", RUNSC_PATH)
    elif runtime is RuncRuntime:
        point_to_built("runc", RUNC_PATH)
    name = f"sandpool-rig-{os.getpid()}"
    before = Remains.of(name, _uids())
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    cgroups = Cgroups(discover(), name)
    launcher = LauncherClient()
    kind = runtime(cgroups, launcher, SystemClock(), directory=directory)
    made = Rig(name, directory, cgroups, launcher, kind)
    try:
        try:
            if isinstance(kind, ConfinedRuntime):
                kind.find_binary()
        except RuntimeUnusable as error:
            raise NotHere(str(error)) from error
        yield made
    finally:
        await made.close()
        launcher.close()
        cgroups.close()
        shutil.rmtree(directory)
    for _ in range(200):
        # Processes that have left their cgroup are still to be seen until the kernel has taken them apart.
        after = Remains.of(name, _uids())
        if after == before:
            break
        await asyncio.sleep(0.01)
    assert after == before, f"left behind: {_difference(before, after)}"


def point_to_built(program: str, variable: str) -> None:
    """Set the variable to the program that was built for tests, unless it is set."""
    builder = _BUILDERS / program
    if variable in os.environ or not builder.exists():
        return
    found = subprocess.run([builder, "--check"], check=False, capture_output=True, text=True)
    if found.returncode == 0:
        os.environ[variable] = found.stdout.strip()


def _uids() -> range:
    first = _FIRST_UID + os.getpid() % 1_000 * _UIDS_EACH
    return range(first, first + _UIDS_EACH)


def alive(pod: PodSandbox) -> list[str]:
    """Return the processes of a pod on the host, found by their user, including those that left its cgroup."""
    return [name for uid, name in processes() if uid in (pod.host_uid, ROOTS + pod.host_uid)]


def processes() -> Iterator[tuple[int, str]]:
    """Return user and name of every running process. One without memory, ended or about to end, runs nothing more."""
    for status in glob("/proc/[0-9]*/status"):
        with suppress(OSError):
            fields = dict(line.partition(":")[::2] for line in Path(status).read_text().splitlines())
            if "VmSize" in fields:
                yield int(fields["Uid"].split()[0]), f"{fields['Name'].strip()} ({fields['Pid'].strip()})"


def _difference(before: Remains, after: Remains) -> str:
    parts = [
        f"{what}: {sorted(more)}"
        for what in ("processes", "mounts", "cgroups")
        if (more := getattr(after, what) - getattr(before, what))
    ]
    if before.descriptors != after.descriptors:
        parts.append(f"descriptors: {after.descriptors - before.descriptors}")
    return "; ".join(parts) or "less than before"
