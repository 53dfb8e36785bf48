"""What the life of a pod needs from the rest of the node: images, volumes and a network.

Each is a few methods, so that pods are tested without root, and so that a node that lacks privileges can put something
weaker in its place. ``sandpool.node.runtimes`` has the fourth part, which runs the containers.

**Restarts.** An agent may be killed at any time. Everything here that makes something is called again for the same pod
by the next agent, and must then find what is there instead of making it twice. Everything that removes something is
called with the pod's UID alone, for pods of which nothing else is known, and does not mind if there is nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from sandpool.api.resource import Object
from sandpool.node.runtimes.runtime import Container, HostToolchain, ImageLayers, Mount

#: In the directory of a pod's volumes: one file per container, for its termination message.
MESSAGES: Final = "messages"
#: Bytes for each of them. 4 KiB are reported; a program that writes a little more should not fail.
MESSAGE_ROOM: Final = 64 << 10


class ImageFailure(Exception):
    """There is no image to run. ``reason`` is what the container's status shows: ErrImagePull, ErrImageNeverPull,
    InvalidImageName or ImageInspectError."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class VolumeFailure(Exception):
    """A volume cannot be had now; the message names it. It is tried again."""


class NetworkFailure(Exception):
    """A pod cannot be connected now. It is tried again."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is there, and what it says about how it is to be run."""

    id: str  # what the container's status shows as imageID
    root: HostToolchain | ImageLayers
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""  # "uid" or "uid:gid", with names looked up in the image's own files; empty: nothing is said
    stop_signal: str = ""
    pulled: bool = False  # it was not there before


class Images(Protocol):
    async def resolve(self, name: str, pull_policy: str, pod: Object) -> Image:
        """The image of this name, fetched if the policy (Always, IfNotPresent, Never) says so, with the pull secrets of
        the pod. Raises ``ImageFailure``, and ``ApiError`` if these cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Attachment:
    """A pod's place in the network."""

    netns: Path | None  # the network namespace is bound to this file; None: there is none but a loopback interface
    addresses: tuple[str, ...] = ()  # the primary one first


class Network(Protocol):
    @property
    def nameservers(self) -> tuple[str, ...]:
        """Who answers names of the cluster for pods; empty if nobody does."""
        ...

    @property
    def host_addresses(self) -> tuple[str, ...]:
        """The addresses of the node, the primary one first."""
        ...

    @property
    def weaknesses(self) -> Mapping[str, str]:
        """What this network does not do although pods rely on it: type of a node condition -> a sentence. Empty if
        nothing is missing."""
        ...

    async def attach(self, pod: Object) -> Attachment:
        """Give a pod a network namespace and addresses. Its policies hold before this returns. Raises
        ``NetworkFailure``."""
        ...

    async def detach(self, uid: str) -> None: ...

    async def attached(self) -> set[str]:
        """The UIDs of the pods that something is left of, to be swept after a crash."""
        ...

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        """A connected, non-blocking TCP socket to a port of a pod, at its own address unless ``host`` says otherwise.
        Raises ``OSError``."""
        ...


@dataclass(frozen=True, slots=True)
class Owner:
    """Who files of a pod's volumes belong to on the host: the pod's one user, so that its ``fsGroup`` adds nothing."""

    uid: int
    gid: int


class PodVolumes(Protocol):
    """The volumes of one pod, which are there."""

    def mounts(self, container: Object, env: Mapping[str, str]) -> tuple[Mount, ...]:
        """What is mounted in a container of the pod, as its ``volumeMounts`` say; ``env`` is for ``subPathExpr``.
        Raises ``VolumeFailure``."""
        ...


class Volumes(Protocol):
    async def prepare(self, pod: Object, directory: Path, owner: Owner, *, simulated: bool = False) -> PodVolumes:
        """Make the volumes of a pod; those that live and die with it go under ``directory``, which is the pod's own.
        ``directory / MESSAGES`` is given a size, if the machine can: containers write their termination messages there.
        In a ``simulated`` pod nothing is written, so nothing is given a size.
        Raises ``VolumeFailure``."""
        ...

    async def release(self, uid: str, directory: Path, *, keep: bool = False) -> None:
        """Undo what ``prepare`` did, except for data that outlives the pod; ``keep`` also leaves what is on disk, for
        the pod to go on with. The directory may be gone already."""
        ...


class Logs(Protocol):
    """Keeps what containers write. A container waits when nobody reads, so reading begins with its start."""

    def follow(self, container: Container, directory: Path, restarts: int) -> None:
        """Read what a container writes from now on, into files in ``directory``, which is kept for the container of
        this name, in all its runs. Called again for the same run, it goes on."""
        ...

    async def finish(self, container: Container) -> None:
        """Take in what is still to be read of a container that has ended, and stop reading."""
        ...

    async def tail(self, container: Container, limit: int) -> bytes:
        """The last ``limit`` bytes of what the present run wrote, as it wrote them."""
        ...
