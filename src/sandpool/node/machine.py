"""Capacity of the machine, and how much of it is left."""

from __future__ import annotations

import os
import platform
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KIB: Final = 1024
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts that do not change while it runs."""

    hostname: str
    cpus: int
    memory: int  # bytes
    storage: int  # bytes of the file system that holds pods
    architecture: str  # Go's name
    kernel: str
    os_image: str
    machine_id: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class Remaining:
    """Resources that are left now; memory and storage in bytes."""

    memory: int
    storage: int
    pids: int


def read_machine(directory: Path, *, root: Path = Path("/")) -> Machine:
    """``directory`` is the one that holds pods."""
    meminfo = _meminfo(root)
    return Machine(
        hostname=platform.node().lower(),
        cpus=len(os.sched_getaffinity(0)),
        memory=meminfo["MemTotal"],
        storage=shutil.disk_usage(directory).total,
        architecture=architecture(),
        kernel=platform.release(),
        os_image=_os_image(root),
        machine_id=_line(root / "etc/machine-id") or uuid.UUID(int=uuid.getnode()).hex,
        boot_id=_line(root / "proc/sys/kernel/random/boot_id"),
    )


def architecture() -> str:
    """Return Go's name of this machine's architecture."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def read_remaining(directory: Path, *, root: Path = Path("/")) -> Remaining:
    threads = _line(root / "proc/loadavg").split(" ")[3].partition("/")[2]
    return Remaining(
        memory=_meminfo(root)["MemAvailable"],
        storage=shutil.disk_usage(directory).free,
        pids=int(_line(root / "proc/sys/kernel/pid_max")) - int(threads),
    )


def _meminfo(root: Path) -> Mapping[str, int]:
    """In bytes."""
    found = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        amount, *unit = rest.split()
        found[name] = int(amount) * (_KIB if unit else 1)
    return found


def _os_image(root: Path) -> str:
    for line in _text(root / "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "Linux"


def _line(path: Path) -> str:
    return _text(path).strip()


def _text(path: Path) -> str:
    """Return the content of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
