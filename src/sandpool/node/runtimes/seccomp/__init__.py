"""The seccomp filter of sandboxes. ``dev/seccomp`` defines it and generates the files in this directory."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).parent


class NoFilter(Exception):
    """There is no filter for this architecture, and no sandbox runs without one."""


def program(machine: str | None = None) -> bytes:
    """The filter as an array of BPF instructions for the kernel."""
    machine = machine or platform.machine()
    file = _HERE / f"{machine}.bpf"
    if not file.is_file():
        made = ", ".join(sorted(file.stem for file in _HERE.glob("*.bpf")))
        raise NoFilter(f"there is no seccomp filter for {machine} (only for {made})")
    return file.read_bytes()


def profile() -> dict[str, Any]:
    """The filter as a profile for OCI runtimes."""
    loaded: dict[str, Any] = json.loads((_HERE / "profile.json").read_bytes())
    return loaded
