"""The seccomp filters of sandboxes, of relays, which are processes that only use descriptors that they were given, and
of servers, which also make sockets. ``dev/seccomp`` defines them and generates the files in this directory."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).parent


class NoFilter(Exception):
    """There is no filter for this architecture, and nothing that needs one runs without."""


def program(machine: str | None = None) -> bytes:
    """The filter of sandboxes as an array of BPF instructions for the kernel."""
    return _program(_HERE, machine or platform.machine())


def relay_program(machine: str | None = None) -> bytes:
    """The filter that a relay loads in addition to that of sandboxes."""
    return _program(_HERE / "relay", machine or platform.machine())


def server_program(machine: str | None = None) -> bytes:
    """The filter that a server loads in addition to that of sandboxes."""
    return _program(_HERE / "server", machine or platform.machine())


def _program(directory: Path, machine: str) -> bytes:
    file = directory / f"{machine}.bpf"
    if not file.is_file():
        made = ", ".join(sorted(file.stem for file in directory.glob("*.bpf")))
        raise NoFilter(f"there is no seccomp filter for {machine} (only for {made})")
    return file.read_bytes()


def profile() -> dict[str, Any]:
    """The filter as a profile for OCI runtimes."""
    loaded: dict[str, Any] = json.loads((_HERE / "profile.json").read_bytes())
    return loaded
