"""What every runtime can do with a container, and what it must be told.

A ``Runtime`` turns a ``ContainerSpec`` into an isolated group of processes. Pod logic, network, images and volumes know
this module and nothing of how a container is confined; tests without root use ``tests.support.fake_runtime``.

**Who prepares what.** Whoever calls has made the directory of the pod and what is mounted from it (volumes, image
layers) and the network namespace. The runtime makes the cgroups and the pod's UTS and IPC namespaces; every mount of a
container exists in its own mount namespace only, goes when its last process goes, and is never visible on the host.
Sources are opened as root, so they need not be readable for the sandbox by their path, only by owner and mode: files
that a container shall write belong to ``PodSandbox.host_uid``.

**Order.** ``open_pod``, then for each container ``create`` and ``start``; ``wait`` tells how it ended; ``delete`` ends
whatever is left and forgets it, after which a container of the same name can be created again; at last ``close_pod``.
``delete`` and ``close_pod`` may be called at any time and more than once, also on what was never made.

**After a crash.** Nothing of a container depends on the process that started it. What is needed to find it again is in
its state directory and in its cgroup; ``adopt`` makes a ``Container`` of them in a new process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from sandpool.node.cgroups.limits import Limits, Usage
from sandpool.node.runtimes.terminal import Terminal

# What a sandbox can write outside of its volumes, in memory of its own, unless its spec says otherwise.
DEFAULT_SCRATCH: Final = 256 << 20
DEFAULT_PIDS: Final = 512
DEFAULT_NOFILE: Final = 1024


class RuntimeFailure(Exception):
    """A runtime could not do what was asked. The message is for the events and conditions of the pod."""


class NoSuchCommand(RuntimeFailure):
    """The program to be executed is not in the container, or cannot be executed. ``code`` is the exit code that shells
    have for that."""

    code = 127


class NotExecutable(NoSuchCommand):
    """It is there, but not for this user, or is no program."""

    code = 126


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """What the containers of a pod have in common."""

    uid: str
    directory: Path  # of the pod's state; containers have their state directories in it
    host_uid: int  # who its processes are on the host; no other pod's, never 0
    host_gid: int
    netns: Path | None  # a network namespace bound to this file; None: nothing but a loopback interface per container
    hostname: str
    hosts: str = ""  # the text of /etc/hosts
    resolv_conf: str = ""  # the text of /etc/resolv.conf
    limits: Limits = field(default_factory=Limits)
    address: str = ""  # its own, where it has one


@dataclass(frozen=True, slots=True)
class HostToolchain:
    """An image made of the machine's own programs: /usr and ``prefixes``, read-only and at their own places, with an
    /etc that holds nothing of the machine but certificates and the like."""

    prefixes: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageLayers:
    """An image as directories on the host, the topmost first, never written to. Several containers may share them."""

    layers: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a container's writes to its own root go; lost with the container. In memory (charged to the container) up
    to ``size`` bytes, or in ``directory``: an empty one made for this container, on disk, of which the size is not
    limited. Removing the directory afterwards is up to who made it."""

    size: int = DEFAULT_SCRATCH
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of the host at ``target``. ``subpath`` is looked up within ``source`` and never leaves it,
    whatever symbolic links a sandbox has made there; if it is not there it is an error, or, with ``make``, made as a
    directory. What is ``optional`` is left out by a runtime that mounts nothing."""

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
    """A read-only file with this content."""

    target: str
    content: bytes
    mode: int = 0o444


Mount = Bind | Tmpfs | DataFile


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """``uid`` and ``gid`` are who its processes are inside; there is no other user in it. Every capability is dropped,
    also for uid 0: there, it owns its files and nothing else."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # all of it: nothing is inherited
    cwd: str = "/"
    uid: int = 1000
    gid: int = 1000
    root: HostToolchain | ImageLayers = HostToolchain()
    scratch: Scratch = Scratch()
    read_only_root: bool = False
    mounts: tuple[Mount, ...] = ()  # in this order: a later one may be mounted in an earlier one
    limits: Limits = field(default_factory=lambda: Limits(pids=DEFAULT_PIDS))
    nofile: int = DEFAULT_NOFILE
    # A terminal as standard input and output instead of FIFOs; ``Container.terminal`` is its other end. It ends with
    # the process that holds it, so such a container does not outlive the agent.
    tty: bool = False
    # Keep standard input open: the FIFO ``stdin`` in the state directory. Otherwise it is at its end from the start.
    stdin: bool = False
    # With ``stdin``: it is at its end when the first has gone who took it (see ``once``). Not for a terminal.
    stdin_once: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """Something to run in a container that runs. What is None is as for the container's own process."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    tty: bool = False  # make standard input, a terminal, the controlling one


@dataclass(frozen=True, slots=True)
class Stdio:
    """File descriptors for a process. They are copied before the call returns; closing them is up to the caller. For a
    terminal all three are the same (see ``Container.open_terminal``)."""

    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True)
class Exit:
    code: int  # 128 + signal if it was killed by one
    oom_killed: bool = False
    message: str = ""  # what the runtime has to say, if the program was never started
    ended_at: float | None = None  # seconds since the epoch; None: just now


class Process(Protocol):
    """A process that was executed in a container besides its own."""

    @property
    def pid(self) -> int:
        """On the host."""
        ...

    async def wait(self) -> int:
        """Its exit code, 128 + signal if it was killed. Can be called by several and again."""
        ...

    async def signal(self, number: int) -> None:
        """Does nothing if it has ended."""
        ...


class Container(Protocol):
    """A container that was created. Its state directory holds the FIFOs ``stdout`` and ``stderr`` (and ``stdin`` if the
    spec asks for it): whoever reads them gets what the container writes; if nobody does, the container waits."""

    @property
    def pod_uid(self) -> str: ...

    @property
    def spec(self) -> ContainerSpec: ...

    @property
    def directory(self) -> Path:
        """Its state, which is there until ``delete``."""
        ...

    @property
    def pid(self) -> int | None:
        """Of its first process, on the host; None before it was started and after its end, and if it has none."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended, paused or not."""
        ...

    @property
    def terminal(self) -> int | None:
        """The other end of its terminal, if it has one. Not after adoption."""
        ...

    async def start(self) -> None:
        """Raises ``RuntimeFailure`` if the container could not be set up. A program that cannot be executed may show
        only as its ``Exit``."""
        ...

    async def wait(self) -> Exit:
        """How its own process ended; nothing of the container runs after that. Can be called by several and again."""
        ...

    async def execute(self, command: Command, stdio: Stdio) -> Process:
        """Run something in it, confined as its own process is: namespaces, user, seccomp filter, cgroup, no
        capabilities. Raises ``NoSuchCommand``, and ``RuntimeFailure`` if the container does not run."""
        ...

    def open_terminal(self) -> Terminal:
        """For a command in it: all of the command's ``Stdio`` is the end that is theirs. Closing both is up to the
        caller. Raises ``RuntimeFailure`` if the container does not run."""
        ...

    async def signal(self, number: int) -> None:
        """To its own process. Does nothing if it has ended."""
        ...

    async def kill(self) -> None:
        """End everything in it, at once and whatever it does; also while it is paused. ``wait`` then returns."""
        ...

    async def pause(self) -> None:
        """Stop everything in it. Returns when nothing runs any more."""
        ...

    async def resume(self) -> None: ...

    async def is_paused(self) -> bool: ...

    async def usage(self) -> Usage: ...

    async def delete(self) -> None:
        """Kill it if it runs; remove its cgroup and its state directory."""
        ...


class Runtime(Protocol):
    @property
    def name(self) -> str:
        """The handler that RuntimeClasses name."""
        ...

    async def probe(self) -> str | None:
        """Run a real sandbox. None if it works and holds, otherwise why this runtime cannot be used here."""
        ...

    async def open_pod(self, pod: PodSandbox) -> None:
        """Make what its containers share. Done again it does nothing, so it is also how to find a pod again."""
        ...

    async def close_pod(self, pod: PodSandbox) -> None:
        """Kill all containers of the pod and remove what ``open_pod`` made. Its directory stays."""
        ...

    async def create(self, pod: PodSandbox, spec: ContainerSpec) -> Container:
        """Make the state directory ``pod.directory / spec.name``, the FIFOs and the cgroup. Nothing runs yet."""
        ...

    async def adopt(self, pod: PodSandbox, name: str) -> Container | None:
        """The container of this name as it was left by another process, whether it still runs or not. None if there is
        none, or if it was created and never started."""
        ...

    async def pods(self) -> set[str]:
        """The UIDs of all pods of which there is a cgroup: what a start-up has to adopt or to close."""
        ...

    async def close(self) -> None:
        """Release what the runtime holds in this process. Containers live on."""
        ...
