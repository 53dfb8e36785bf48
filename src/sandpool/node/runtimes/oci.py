"""The crun and runc runtimes, called directly, without a container engine. See ``launcher.bundle``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.group import Group
from sandpool.node.cgroups.limits import Limits
from sandpool.node.launcher.spawn_container import CRUN, RUNC, ContainerRequest
from sandpool.node.runtimes.confined import ConfinedContainer, ConfinedRuntime, RuntimeBinary, RuntimeUnusable
from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.process_tracker import OciProcessTracker, ProcessTracker
from sandpool.node.runtimes.runtime import ContainerSpec, PodSandbox

#: The environment variable with the path of the runc to use instead of the one in PATH.
RUNC_PATH: Final = "RUNC_PATH"
# Additional processes while a container starts: threads of runc, which is written in Go. Under load it had 19.
_START_THREADS: Final = 32


class OciRuntime(ConfinedRuntime):
    kind: str  # also the name of the program

    @property
    def name(self) -> str:
        return self.kind

    def find_binary(self) -> RuntimeBinary:
        path = self.find_program()
        if path is None:
            raise RuntimeUnusable(f"{self.kind} is not installed")
        real = Path(path).resolve()
        version = _version(real)
        self.check(version)
        return RuntimeBinary(real.parent, real.name, _numbers(version), self.kind)

    def find_program(self) -> str | None:
        return shutil.which(self.kind)

    def check(self, version: str) -> None:
        """Raise ``RuntimeUnusable`` if this version is not to be trusted."""

    def tracker(self, status: Path, cgroup: Group) -> ProcessTracker:
        return OciProcessTracker(status, cgroup, self.binary.program)


class CrunRuntime(OciRuntime):
    kind = CRUN


class RuncRuntime(OciRuntime):
    kind = RUNC

    def find_program(self) -> str | None:
        path = os.environ.get(RUNC_PATH) or super().find_program()
        return path if path is not None and os.access(path, os.X_OK) else None

    def check(self, version: str) -> None:
        """Refuse versions before the fixes of November 2025 (CVE-2025-31133, -52565, -52881): an image could make runc
        mount files of the host."""
        numbers, candidate = _numbers(version), re.search(r"-rc\.(\d+)", version)
        is_fixed = numbers >= (1, 3, 3) or (1, 2, 8) <= numbers < (1, 3)
        if numbers[:3] == (1, 4, 0) and candidate is not None:
            is_fixed = int(candidate[1]) >= 3
        if not is_fixed:
            raise RuntimeUnusable(
                f"runc {version} lets images escape (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881): install 1.2.8, "
                f"1.3.3 or later, or set {RUNC_PATH} to one; dev/runc builds it"
            )

    def container_request(self, container: LaunchedContainer, stdio: list[int]) -> ContainerRequest:
        unified = container.cgroup.join_files()[0].parent
        return super().container_request(container, stdio)._replace(cgroup=str(unified))

    def limits(self, limits: Limits) -> Limits:
        return limits if limits.pids is None else replace(limits, pids=limits.pids + _START_THREADS)

    def container(self, pod: PodSandbox, spec: ContainerSpec) -> LaunchedContainer:
        return RuncContainer(self, pod, spec)


class RuncContainer(ConfinedContainer):
    """A container that may have more processes while it starts."""

    async def start(self) -> None:
        await super().start()
        self._drop_start_limits()

    async def find(self) -> bool:
        found = await super().find()
        self._drop_start_limits()
        return found

    def _drop_start_limits(self) -> None:
        if self.tracker.is_executed():
            with suppress(FileNotFoundError):  # it is being deleted
                self.cgroup.limit(self.spec.limits)


def _version(path: Path) -> str:
    """The version that the program prints first, before that of the OCI specification."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeUnusable(f"{path} does not say its version: {error}") from error
    found = re.search(r"version (\d+\.\d+\S*)", output)
    if found is None:
        raise RuntimeUnusable(f"{path} does not say its version")
    return found[1]


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part) for part in found.groups() if part) if found else ()
