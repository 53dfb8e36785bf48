"""Containers confined by an OCI runtime, called directly, without an engine. See ``launcher.bundle``."""

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
from sandpool.node.runtimes.confined import ConfinedContainer, ConfinedRuntime, RuntimeBinary, Unusable
from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.process_tracker import OciProcessTracker, ProcessTracker
from sandpool.node.runtimes.runtime import ContainerSpec, PodSandbox

#: Names runc where the one in PATH is not the one to use.
RUNC_PATH: Final = "RUNC_PATH"
# Processes it takes to start a container: threads of runc, which is written in Go. Under load there were 19 of them.
_STARTING: Final = 32


class OciRuntime(ConfinedRuntime):
    kind: str  # which is also what the program is called

    @property
    def name(self) -> str:
        return self.kind

    def find_binary(self) -> RuntimeBinary:
        path = self.find_program()
        if path is None:
            raise Unusable(f"{self.kind} is not installed")
        real = Path(path).resolve()
        said = _said(real)
        self.check(said)
        return RuntimeBinary(real.parent, real.name, _numbers(said), self.kind)

    def find_program(self) -> str | None:
        return shutil.which(self.kind)

    def check(self, version: str) -> None:
        """Raise ``Unusable`` if one of this version is not to be trusted."""

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
        """Before the repairs of November 2025 (CVE-2025-31133, -52565, -52881) an image could have runc mount what it
        likes, the host's files among it."""
        numbers, candidate = _numbers(version), re.search(r"-rc\.(\d+)", version)
        repaired = numbers >= (1, 3, 3) or (1, 2, 8) <= numbers < (1, 3)
        if numbers[:3] == (1, 4, 0) and candidate is not None:
            repaired = int(candidate[1]) >= 3
        if not repaired:
            raise Unusable(
                f"runc {version} lets images out (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881): install 1.2.8, "
                f"1.3.3 or later, or name such a one by {RUNC_PATH}; dev/runc builds one"
            )

    def container_request(self, container: LaunchedContainer, stdio: list[int]) -> ContainerRequest:
        unified = container.cgroup.join_files()[0].parent
        return super().container_request(container, stdio)._replace(cgroup=str(unified))

    def limits(self, limits: Limits) -> Limits:
        return limits if limits.pids is None else replace(limits, pids=limits.pids + _STARTING)

    def container(self, pod: PodSandbox, spec: ContainerSpec) -> LaunchedContainer:
        return RuncContainer(self, pod, spec)


class RuncContainer(ConfinedContainer):
    """One that may have more processes while it starts."""

    async def start(self) -> None:
        await super().start()
        self._settle()

    async def find(self) -> bool:
        found = await super().find()
        self._settle()
        return found

    def _settle(self) -> None:
        if self.tracker.is_executed():
            with suppress(FileNotFoundError):  # it is being deleted
                self.cgroup.limit(self.spec.limits)


def _said(path: Path) -> str:
    """The version, as the program says it: before that of the specification it follows."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(f"{path} does not say its version: {error}") from error
    found = re.search(r"version (\d+\.\d+\S*)", said)
    if found is None:
        raise Unusable(f"{path} does not say its version")
    return found[1]


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part) for part in found.groups() if part) if found else ()
