"""Which system calls a sandbox may make. ``dev/seccomp`` says which and why, and writes the files beside this one."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).parent


class NoFilter(Exception):
    """There is no filter for this kind of machine, and nothing is run without."""


def program(machine: str | None = None) -> bytes:
    """The filter as the kernel takes it: an array of BPF instructions."""
    machine = machine or platform.machine()
    file = _HERE / f"{machine}.bpf"
    if not file.is_file():
        made = ", ".join(sorted(file.stem for file in _HERE.glob("*.bpf")))
        raise NoFilter(f"there is no seccomp filter for {machine} (only for {made})")
    return file.read_bytes()


def profile() -> dict[str, Any]:
    """The same as OCI runtimes take it."""
    loaded: dict[str, Any] = json.loads((_HERE / "profile.json").read_bytes())
    return loaded
