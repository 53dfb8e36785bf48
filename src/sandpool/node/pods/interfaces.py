"""Interfaces of the rest of the node to the pod lifecycle: images, volumes, a network and logs.

Each interface is a few methods, so that pods can be tested without root, and so that a node without privileges can use
a weaker implementation. The fourth part, which runs containers, is in ``sandpool.node.runtimes``.

**Restarts.** An agent may be killed at any time. Every method that makes something is called again for the same pod by
the next agent and must then find what exists instead of making it twice. Every method that removes something is called
with the pod's UID alone, for pods of which nothing else is known, and succeeds if there is nothing to remove.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from sandpool.api.resource import Object, SharedObject
from sandpool.node.runtimes.runtime import Container, HostToolchain, ImageLayers, Mount

#: In the directory of a pod's volumes: one file per container, for its termination message.
MESSAGES: Final = "messages"
#: Bytes for each of them. 4 KiB are reported; a program that writes a little more should not fail.
MESSAGE_ROOM: Final = 64 << 10


class ImageFailure(Exception):
    """The image cannot be used. ``reason`` appears in the container's status: ErrImagePull, ErrImageNeverPull,
    InvalidImageName or ImageInspectError."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class VolumeFailure(Exception):
    """A volume cannot be made now; the message names it. The node tries again."""


class NetworkFailure(Exception):
    """A pod cannot be connected to the network now. The node tries again."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is present, with its configuration."""

    id: str  # imageID in the container's status
    root: HostToolchain | ImageLayers
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""  # "uid" or "uid:gid", names resolved with the image's own files; empty if the image sets none
    stop_signal: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)  # read-only files by path, unless the pod mounts its own
    pulled: bool = False  # it was pulled just now
    # The directory of the runtime server that a sandbox of this image gets; None if the image has one of its own.
    runtime: Path | None = None


class Images(Protocol):
    async def resolve(self, name: str, pull_policy: str, pod: SharedObject) -> Image:
        """Return the image of this name. Pulls it if the policy (Always, IfNotPresent, Never) says so, with the pod's
        pull secrets. Raises ``ImageFailure``, and ``ApiError`` if the secrets cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Attachment:
    """A pod's network namespace and addresses."""

    netns: Path | None  # file to which the network namespace is bound; None: only a loopback interface
    addresses: tuple[str, ...] = ()  # the primary one first


class Network(Protocol):
    @property
    def nameservers(self) -> tuple[str, ...]:
        """Addresses of the cluster's DNS servers for pods; empty if there are none."""
        ...

    @property
    def host_addresses(self) -> tuple[str, ...]:
        """The addresses of the node, the primary one first."""
        ...

    @property
    def weaknesses(self) -> Mapping[str, str]:
        """Guarantees that this network does not give: type of a node condition -> its message."""
        ...

    async def attach(self, pod: SharedObject) -> Attachment:
        """Give a pod a network namespace and addresses. Its network policies are in force before this returns. Raises
        ``NetworkFailure``."""
        ...

    async def detach(self, uid: str) -> None: ...

    async def attached(self) -> set[str]:
        """Return the UIDs of pods that have something in the network, to remove orphans after a crash."""
        ...

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        """Return a connected, non-blocking TCP socket to a port of a pod, at its own address unless ``host`` is given.
        Raises ``OSError``."""
        ...


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of the files in a pod's volumes on the host: the pod's one user, so its ``fsGroup`` adds nothing."""

    uid: int
    gid: int


class PodVolumes(Protocol):
    """The prepared volumes of one pod."""

    def mounts(self, container: Object, env: Mapping[str, str]) -> tuple[Mount, ...]:
        """Return the mounts of a container according to its ``volumeMounts``; ``env`` is for ``subPathExpr``. Raises
        ``VolumeFailure``."""
        ...


class Volumes(Protocol):
    async def prepare(self, pod: SharedObject, directory: Path, owner: Owner, *, simulated: bool = False) -> PodVolumes:
        """Make the volumes of a pod. Those that live and die with it go below ``directory``, which belongs to the pod.
        ``directory / MESSAGES`` is given a size if the machine can: containers write their termination messages there.
        Nothing is written in a ``simulated`` pod, so nothing is given a size. Raises ``VolumeFailure``."""
        ...

    async def release(self, uid: str, directory: Path, *, keep: bool = False) -> None:
        """Undo ``prepare``, except for data that outlives the pod. ``keep`` also keeps what is on disk, for a pod that
        continues later. The directory may be gone already."""
        ...


class RootDisks(Protocol):
    """Makes the disks that hold the writes of containers to their roots."""

    @property
    def default_size(self) -> int:
        """Bytes for a container that sets no ``ephemeral-storage`` limit."""
        ...

    async def image(self, size: int) -> Path:
        """Return the image of an empty file system of this size, of which each container gets a copy. Raises
        ``VolumeFailure``."""
        ...


class Logs(Protocol):
    """Stores the output of containers. A container blocks when its output is not read, so reading begins with its
    start."""

    def follow(self, container: Container, directory: Path, restarts: int) -> None:
        """Read the output of a container from now on, into files in ``directory``, which all runs of the container
        share. Calling it again for the same run continues it."""
        ...

    async def finish(self, container: Container) -> None:
        """Read the remaining output of a container that has ended, and stop."""
        ...

    async def tail(self, container: Container, limit: int) -> bytes:
        """Return the last ``limit`` bytes of the output of the current run."""
        ...
