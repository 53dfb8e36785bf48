"""RuntimeClass handlers, whether this node has the runtime or not.

The API refuses a pod with an unknown RuntimeClass without a reason. A class is therefore published for each of these
handlers. A pod of an unavailable runtime stays pending with the reason, and runs once a node has the runtime. A pod
never runs in another runtime than the one it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

T = TypeVar("T")

#: Aliases of handlers. RuntimeClasses of clusters with gVisor usually name runsc.
ALIASES: Final = {"runsc": "gvisor"}

#: The runtimes that a node probes at start.
SUPPORTED: Final = ("bwrap", "crun", "gvisor", "runc")

_MACHINES: Final = "virtual machines are not supported"
_ENGINES: Final = "container engines are not supported; crun runs the same images without one"
#: The reasons for which a node never has these runtimes.
UNSUPPORTED: Final[Mapping[str, str]] = {
    "docker": _ENGINES,
    "firecracker": _MACHINES,
    "kata": _MACHINES,
    "kata-fc": _MACHINES,
    "microvm": _MACHINES,
    "nsjail": "nsjail is not supported; bwrap confines the same way",
    "podman": _ENGINES,
    "process": "it isolates nothing, and --allow-unsafe-process-runtime is not given",
    "simulated": "it is only available beside a runtime that runs programs, and none works here",
}

#: Descriptions of the RuntimeClasses of runtimes that do not isolate or run programs.
DESCRIPTIONS: Final[Mapping[str, str]] = {
    "process": "not isolated: containers are processes like any other of the machine",
    "simulated": "for load tests: everything around a container is real, and nothing runs in it",
}


def with_aliases(found: Mapping[str, T]) -> dict[str, T]:
    return {**found, **{alias: found[name] for alias, name in ALIASES.items() if name in found}}


def with_unsupported(available: Mapping[str, object], unavailable: Mapping[str, str]) -> dict[str, str]:
    """Return the reason for every runtime that is not available, sorted by name."""
    missing = {name: why for name, why in UNSUPPORTED.items() if name not in available}
    return dict(sorted({**missing, **with_aliases(unavailable)}.items()))


def tried(unavailable: Mapping[str, str]) -> dict[str, str]:
    """Return those of the unavailable runtimes that the node has probed."""
    return {name: why for name, why in unavailable.items() if name not in ALIASES and UNSUPPORTED.get(name) != why}


def refusal(name: str, why: str) -> str:
    """The message for a pod of a runtime that is not available."""
    return f"runtime {name} is not available on this node{why and f': {why}'}"
