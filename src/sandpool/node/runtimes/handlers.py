"""The runtimes that pods may ask for by name, whether this node has them or not.

The API refuses pods of a RuntimeClass that is not there, and whoever made them learns nothing but that. So a class is
published for each of these names, and a pod that asks for what cannot be had waits, is told why, and runs when a node
has it. What it never does is run in something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

T = TypeVar("T")

#: Another name of a handler: what the RuntimeClasses of clusters with gVisor usually name.
ALIASES: Final = {"runsc": "gvisor"}

#: What a node tries to have.
SUPPORTED: Final = ("bwrap", "crun", "gvisor", "runc")

_MACHINES: Final = "this node makes no virtual machines"
_ENGINES: Final = "this node uses no container engine; crun runs the same images without one"
#: Why this node does not even try.
UNSUPPORTED: Final[Mapping[str, str]] = {
    "docker": _ENGINES,
    "firecracker": _MACHINES,
    "kata": _MACHINES,
    "kata-fc": _MACHINES,
    "microvm": _MACHINES,
    "nsjail": "this node does not use it; bwrap confines the same way",
    "podman": _ENGINES,
    "process": "it isolates nothing, and --allow-unsafe-process-runtime is not given",
    "simulated": "it is there only beside a runtime that runs something, and none works here",
}

#: Of those whose pods might be taken for something else, in the words that their RuntimeClasses carry.
DESCRIPTIONS: Final[Mapping[str, str]] = {
    "process": "not isolated: containers are processes like any other of the machine",
    "simulated": "for load tests: everything around a container is real, and nothing runs in it",
}


def with_aliases(found: Mapping[str, T]) -> dict[str, T]:
    return {**found, **{alias: found[name] for alias, name in ALIASES.items() if name in found}}


def with_unsupported(available: Mapping[str, object], unavailable: Mapping[str, str]) -> dict[str, str]:
    """Why each of those is missing that are, in the order of their names."""
    missing = {name: why for name, why in UNSUPPORTED.items() if name not in available}
    return dict(sorted({**missing, **with_aliases(unavailable)}.items()))


def tried(unavailable: Mapping[str, str]) -> dict[str, str]:
    """Those of them that this node would have if it could."""
    return {name: why for name, why in unavailable.items() if name not in ALIASES and UNSUPPORTED.get(name) != why}


def refusal(name: str, why: str) -> str:
    """What a pod is told that asks for a runtime which is not there."""
    return f"runtime {name} is not available on this node{why and f': {why}'}"
