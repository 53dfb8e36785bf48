"""Discovers the cgroup hierarchies of this machine.

There are three layouts. *Unified*: one v2 hierarchy with all controllers. *Hybrid*: a v2 hierarchy that can kill and
freeze but has no controllers, and v1 hierarchies for cpu, memory and pids. *Legacy*: v1 only, where killing a group of
processes is not reliable; it is not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONTROLLERS: Final = ("cpu", "memory", "pids")


class NoCgroups(Exception):
    """This machine has no usable cgroups. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Mounts:
    unified: Path
    # Mount points of the controllers that are not in the unified hierarchy.
    v1: dict[str, Path]


def discover(mountinfo: Path = Path("/proc/self/mountinfo")) -> Mounts:
    unified: Path | None = None
    v1: dict[str, Path] = {}
    for line in mountinfo.read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        type, _, options = after.split(maxsplit=2)
        if type == "cgroup2":
            unified = unified or point
        elif type == "cgroup":
            named = set(options.split(","))
            v1 |= {name: point for name in CONTROLLERS if name in named}
    if unified is None:
        raise NoCgroups("no cgroup v2 hierarchy is mounted; mount one, at /sys/fs/cgroup/unified beside v1")
    there = set((unified / "cgroup.controllers").read_text().split())
    missing = [name for name in CONTROLLERS if name not in there and name not in v1]
    if missing:
        raise NoCgroups(f"no cgroup controller for {', '.join(missing)}")
    return Mounts(unified, {name: point for name, point in v1.items() if name not in there})
