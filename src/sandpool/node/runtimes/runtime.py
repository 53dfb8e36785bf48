"""The interface of container runtimes.

A ``Runtime`` turns a ``ContainerSpec`` into an isolated group of processes. Pod logic, network, images and volumes use
this module and do not depend on how a container is confined; tests without root use ``tests.support.fake_runtime``.

**Preparation.** The caller makes the pod's directory, the sources of mounts (volumes, image layers) and the network
namespace. The runtime makes the cgroups and the UTS and IPC namespaces. Every mount of a container exists in its own
mount namespace only, goes with its last process, and is never visible on the host. Sources are opened as root, so the
sandbox needs no access to their path; files that a container writes must belong to ``PodSandbox.host_uid``.

**Order.** ``open_pod``; then for each container ``create`` and ``start``; ``wait`` returns how it ended; ``delete``
kills and removes it, after which a container of the same name can be created again; at last ``close_pod``. ``delete``
and ``close_pod`` may be called at any time and repeatedly, also for what was never made.

**After a crash.** A container does not depend on the process that started it. Its state directory and its cgroup have
everything that ``adopt`` needs to make a ``Container`` in a new process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from sandpool.node.cgroups.limits import Limits, Usage
from sandpool.node.runtimes.terminal import Terminal

# Bytes that a sandbox can write to its root if the root is kept in memory, unless its spec says otherwise.
DEFAULT_SCRATCH: Final = 256 << 20
DEFAULT_PIDS: Final = 512
DEFAULT_NOFILE: Final = 1024


class RuntimeFailure(Exception):
    """A runtime operation failed. The message is for the events and conditions of the pod."""


class NoSuchCommand(RuntimeFailure):
    """The program is not in the container, or cannot be executed. ``code`` is the exit code of shells for that."""

    code = 127


class NotExecutable(NoSuchCommand):
    """The file exists, but is not executable for this user, or is not a program."""

    code = 126


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """The parts that all containers of a pod share."""

    uid: str
    directory: Path  # the pod's state, with the state directories of its containers
    host_uid: int  # the user of its processes on the host; unique to the pod, never 0
    host_gid: int
    netns: Path | None  # a network namespace bound to this file; None: a loopback interface per container
    hostname: str
    hosts: str = ""  # the text of /etc/hosts
    resolv_conf: str = ""  # the text of /etc/resolv.conf
    limits: Limits = field(default_factory=Limits)
    address: str = ""  # of the pod, if it has one


@dataclass(frozen=True, slots=True)
class HostToolchain:
    """An image made of the machine's own programs: /usr and ``prefixes``, read-only and at their own paths, with an
    /etc that has certificates and the like of the machine. ``layers`` are directories with more files, the topmost
    first, as in ``ImageLayers``; what they have in /usr is added to the machine's."""

    prefixes: tuple[Path, ...] = ()
    layers: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageLayers:
    """An image as directories on the host, the topmost first. They are never written to and may be shared."""

    layers: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Scratch:
    """The place of a container's writes to its root; lost with the container.

    * With ``disk``, the image of an empty file system of ``size`` bytes: on a copy of it on disk, which is in the same
      directory, has no name and goes with the container.
    * With ``directory``: there, an empty directory on disk without a size limit, which the caller makes and removes. It
      then has them in ``upper``, as a layer for further containers. (For a ``HostToolchain``, /usr is writable too.)
    * Otherwise in memory, up to ``size`` bytes, charged to the container."""

    size: int = DEFAULT_SCRATCH
    directory: Path | None = None
    disk: Path | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of the host at ``target``. ``subpath`` is resolved inside ``source``; symbolic links never
    lead out of it. A missing ``subpath`` is an error, or is made as a directory with ``make``. A runtime that cannot
    mount leaves out an ``optional`` one."""

    source: Path
    target: str
    read_only: bool = False
    subpath: str = ""
    optional: bool = False
    make: bool = False


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A directory in memory, charged to the container that writes to it."""

    target: str
    size: int
    mode: int = 0o1777


@dataclass(frozen=True, slots=True)
class DataFile:
    """A read-only file with this content. A runtime that cannot mount leaves out an ``optional`` one."""

    target: str
    content: bytes
    mode: int = 0o444
    optional: bool = False


Mount = Bind | Tmpfs | DataFile


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """``uid`` and ``gid`` are the user of its processes inside, the only one in it. Every capability is dropped, also
    for uid 0, which merely owns its files."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # complete: nothing is inherited
    cwd: str = "/"
    uid: int = 1000
    gid: int = 1000
    root: HostToolchain | ImageLayers = HostToolchain()
    scratch: Scratch = Scratch()
    read_only_root: bool = False
    mounts: tuple[Mount, ...] = ()  # in this order: a later one may be mounted in an earlier one
    limits: Limits = field(default_factory=lambda: Limits(pids=DEFAULT_PIDS))
    nofile: int = DEFAULT_NOFILE
    # A terminal instead of FIFOs as standard input and output; ``Container.terminal`` is its other end. The terminal
    # ends with the process that holds it, so such a container does not outlive the agent.
    tty: bool = False
    # Keep standard input open: the FIFO ``stdin`` in the state directory. Otherwise it is /dev/null.
    stdin: bool = False
    # With ``stdin``: it ends with the first attachment (see ``stdin_once``). Not for a terminal.
    stdin_once: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run in a running container. None means the value of the container's own process."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    tty: bool = False  # make the terminal on standard input the controlling one


@dataclass(frozen=True, slots=True)
class Stdio:
    """File descriptors for a process. They are copied before the call returns; the caller closes them. For a terminal
    all three are the same (see ``Container.open_terminal``)."""

    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True)
class Exit:
    code: int  # 128 + signal number if killed by a signal
    oom_killed: bool = False
    message: str = ""  # the error of the runtime, if the program was never started
    ended_at: float | None = None  # seconds since the epoch; None: just now


class Process(Protocol):
    """A command that was executed in a container."""

    @property
    def pid(self) -> int:
        """The PID on the host."""
        ...

    async def wait(self) -> int:
        """Return its exit code, 128 + signal if it was killed. Can be called concurrently and repeatedly."""
        ...

    async def signal(self, number: int) -> None:
        """Does nothing if it has ended."""
        ...


class Container(Protocol):
    """A created container. Its state directory has the FIFOs ``stdout`` and ``stderr`` (and ``stdin`` if the spec has
    it). If no process reads its output, the container blocks."""

    @property
    def pod_uid(self) -> str: ...

    @property
    def spec(self) -> ContainerSpec: ...

    @property
    def directory(self) -> Path:
        """The state directory, which exists until ``delete``."""
        ...

    @property
    def pid(self) -> int | None:
        """The PID of its first process on the host; None before its start, after its end, and if it has none."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended. A paused container is running."""
        ...

    @property
    def terminal(self) -> int | None:
        """The other end of its terminal, if it has one. None after adoption."""
        ...

    async def start(self) -> None:
        """Start the container. Raises ``RuntimeFailure`` if it cannot be set up. A program that cannot be executed may
        only show in its ``Exit``."""
        ...

    async def wait(self) -> Exit:
        """Return how its own process ended. No process of the container runs after that. Can be called concurrently and
        repeatedly."""
        ...

    async def execute(self, command: Command, stdio: Stdio) -> Process:
        """Run a command in it, confined as its own process is: namespaces, user, seccomp filter, cgroup, no
        capabilities. Raises ``NoSuchCommand``, and ``RuntimeFailure`` if the container does not run."""
        ...

    def open_terminal(self) -> Terminal:
        """Open a terminal for a command: its end ``theirs`` is all of the command's ``Stdio``. The caller closes both
        ends. Raises ``RuntimeFailure`` if the container does not run."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its own process. Does nothing if it has ended."""
        ...

    async def kill(self) -> None:
        """Kill all its processes, also while it is paused. ``wait`` then returns."""
        ...

    async def pause(self) -> None:
        """Stop all its processes. Returns when none runs any more."""
        ...

    async def resume(self) -> None: ...

    async def is_paused(self) -> bool: ...

    async def usage(self) -> Usage: ...

    def mark_ready(self) -> None:
        """Record that it is ready. The first call counts, also if an earlier agent made it."""
        ...

    def background_processes(self) -> int | None:
        """The number of its processes that were started after it was ready; None if that cannot be known. Exec agents
        do not count."""
        ...

    async def delete(self) -> None:
        """Kill it if it runs, then remove its cgroup and its state directory."""
        ...


class Runtime(Protocol):
    @property
    def name(self) -> str:
        """The handler of RuntimeClasses."""
        ...

    async def probe(self) -> str | None:
        """Test a real sandbox. Returns None if it runs and is confined, otherwise why the runtime is unusable here."""
        ...

    async def open_pod(self, pod: PodSandbox) -> None:
        """Make what the pod's containers share. Idempotent, so it is also used to adopt a pod."""
        ...

    async def close_pod(self, pod: PodSandbox) -> None:
        """Kill all containers of the pod and remove what ``open_pod`` made. Its directory stays."""
        ...

    async def create(self, pod: PodSandbox, spec: ContainerSpec) -> Container:
        """Make the state directory ``pod.directory / spec.name``, the FIFOs and the cgroup. Nothing runs yet."""
        ...

    async def adopt(self, pod: PodSandbox, name: str) -> Container | None:
        """Return the container of this name that another process has started, running or ended. None if it does not
        exist or was never started."""
        ...

    async def pods(self) -> set[str]:
        """The UIDs of all pods that have a cgroup, which an agent has to adopt or close at its start."""
        ...

    async def close(self) -> None:
        """Release what the runtime holds in this process. Containers keep running."""
        ...
