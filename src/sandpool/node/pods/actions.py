"""Actions of a pod's plan. The worker begins each one once and records its outcome in the ``PodState``."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.node.pods.spec import ProbeKind


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the pod's volumes and network."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a container."""

    name: str


@dataclass(frozen=True, slots=True)
class PostStart:
    """Run the postStart hook of a container."""

    name: str


@dataclass(frozen=True, slots=True)
class PreStop:
    """Run the preStop hook of a container for at most ``seconds``."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a container its stop signal."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Send a container SIGKILL."""

    name: str


@dataclass(frozen=True, slots=True)
class RunProbe:
    """Run a probe of a container once."""

    name: str
    kind: ProbeKind


@dataclass(frozen=True, slots=True)
class Freeze:
    """Freeze the pod's containers."""


@dataclass(frozen=True, slots=True)
class Thaw:
    """Thaw the pod's containers."""


@dataclass(frozen=True, slots=True)
class Release:
    """Release the network, the cgroups and all mounts. ``volumes=False`` keeps the content of volumes on disk, for a
    pod that continues later. Logs stay."""

    volumes: bool = True


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove what is left of the pod on this machine, then the pod itself from the API."""


Action = Prepare | Start | PostStart | PreStop | Signal | Kill | RunProbe | Freeze | Thaw | Release | Discard
