"""What a worker is to do next about its pod. Each is begun once; what comes of it is told to the ``PodState``."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.node.pods.spec import ProbeKind


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make its volumes and its network."""


@dataclass(frozen=True, slots=True)
class Start:
    name: str


@dataclass(frozen=True, slots=True)
class PostStart:
    """Run the hook after a container's start."""

    name: str


@dataclass(frozen=True, slots=True)
class PreStop:
    """Run the hook before a container's end, for so many seconds at most."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Signal:
    """Ask a container to end."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End a container by force."""

    name: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a probe's question."""

    name: str
    kind: ProbeKind


@dataclass(frozen=True, slots=True)
class Freeze:
    pass


@dataclass(frozen=True, slots=True)
class Thaw:
    pass


@dataclass(frozen=True, slots=True)
class Release:
    """Give back its network and cgroups and all mounts, and what its volumes hold unless it is to go on later; the logs
    stay."""

    volumes: bool = True


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove all that is left of it, and then the pod from the API."""


Action = Prepare | Start | PostStart | PreStop | Signal | Kill | Ask | Freeze | Thaw | Release | Discard
