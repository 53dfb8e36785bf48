"""Containers confined by crun, called directly, without an engine. See ``launcher.bundle``."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from sandpool.node.cgroups.group import Group
from sandpool.node.launcher.birth import CRUN
from sandpool.node.runtimes.confined import ConfinedRuntime, Confiner, Unusable
from sandpool.node.runtimes.trace import OciTrace, Trace


class CrunRuntime(ConfinedRuntime):
    @property
    def name(self) -> str:
        return CRUN

    def find_confiner(self) -> Confiner:
        path = shutil.which(CRUN)
        if path is None:
            raise Unusable("crun is not installed")
        real = Path(path).resolve()
        return Confiner(real.parent, real.name, _version(path), CRUN)

    def trace(self, status: Path, cgroup: Group) -> Trace:
        return OciTrace(status, cgroup, self.confiner.program)


def _version(path: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(f"{path} does not say its version: {error}") from error
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", said)
    if found is None:
        raise Unusable(f"{path} does not say its version")
    return tuple(int(part) for part in found.groups() if part)
