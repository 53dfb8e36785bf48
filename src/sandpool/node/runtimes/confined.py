"""Base of the runtimes that confine containers with an external program: namespaces, a user, a seccomp filter."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from sandpool.engine.clock import Clock
from sandpool.node.cgroups.group import Groups
from sandpool.node.cgroups.mounts import NoCgroups
from sandpool.node.cgroups.pid_namespace_groups import PidNamespaceGroup
from sandpool.node.cgroups.process_identity import MEMBERS_FILE, start_time
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.enter import EnterRequest
from sandpool.node.launcher.exec_agent import ExecRequest
from sandpool.node.launcher.exec_agent_pool import ExecAgentPool
from sandpool.node.launcher.spawn_container import ContainerRequest
from sandpool.node.runtimes import selftest
from sandpool.node.runtimes.container import LaunchedContainer, LaunchedProcess, LaunchedRuntime
from sandpool.node.runtimes.runtime import Command, ContainerSpec, PodSandbox, Stdio
from sandpool.node.runtimes.seccomp import NoFilter, program


class RuntimeUnusable(Exception):
    """The runtime's program is missing or not to be trusted. The message says what to do."""


@dataclass(frozen=True, slots=True)
class RuntimeBinary:
    """A runtime's program. ``program`` is a path in ``directory``, which also has its libraries. ``kind`` selects how
    it is called (see ``launcher.spawn_container``), ``platform`` how gVisor intercepts system calls."""

    directory: Path
    program: str
    version: tuple[int, ...]
    kind: str
    platform: str = ""


class ConfinedRuntime(LaunchedRuntime):
    works_without_root = False
    _confiner: RuntimeBinary | None = None

    def __init__(self, cgroups: Groups, launcher: LauncherClient, clock: Clock, *, directory: Path) -> None:
        super().__init__(cgroups, launcher, clock, directory=directory)
        self.exec_agents = ExecAgentPool(launcher, clock)

    @abstractmethod
    def find_binary(self) -> RuntimeBinary:
        """Find the program of the runtime. Raises ``RuntimeUnusable``."""

    @property
    def binary(self) -> RuntimeBinary:
        if self._confiner is None:
            self._confiner = self.find_binary()
        return self._confiner

    async def probe(self) -> str | None:
        if os.geteuid() != 0 and not self.works_without_root:
            return f"{self.name} needs root"
        try:
            program()
            version = await asyncio.to_thread(lambda: self.binary.version)
            self.cgroups.check()
        except (NoFilter, NoCgroups, RuntimeUnusable) as error:
            return str(error)
        failure = await selftest.run(self, self.directory)
        return failure and f"{self.name} {'.'.join(map(str, version))}: {failure}"

    def container(self, pod: PodSandbox, spec: ContainerSpec) -> LaunchedContainer:
        return ConfinedContainer(self, pod, spec)

    async def close(self) -> None:
        self.exec_agents.close()
        await super().close()

    def container_request(self, container: LaunchedContainer, stdio: list[int]) -> ContainerRequest:
        binary = self.binary
        return ContainerRequest(
            pod=container.pod,
            spec=container.spec,
            join_files=[str(file) for file in container.cgroup.join_files()],
            programs=binary.directory,
            program=binary.program,
            kind=binary.kind,
            platform=binary.platform,
            cgroup="",
            status=str(container.tracker.status),
            stdio=stdio,
            filter=b"",
        )


class ConfinedContainer(LaunchedContainer):
    """A container that can be entered from outside, because it runs on the host's kernel."""

    runtime: ConfinedRuntime

    async def execute(self, command: Command, stdio: Stdio) -> LaunchedProcess:
        self.check_not_ended()
        spec = self.spec
        request = ExecRequest(
            argv=list(command.argv),
            env=dict(spec.env if command.env is None else command.env),
            cwd=spec.cwd if command.cwd is None else command.cwd,
            tty=command.tty,
        )
        return LaunchedProcess(
            await self.runtime.exec_agents.send(
                self, request, [stdio.stdin, stdio.stdout, stdio.stderr], self._enter_request
            )
        )

    async def delete(self) -> None:
        try:
            await super().delete()
        finally:
            self.runtime.exec_agents.dismiss(self)

    def _enter_request(self) -> EnterRequest:
        """The request for an exec agent."""
        init, spec = self.check_running(), self.spec
        return EnterRequest(
            pid=init,
            cgroup=self.cgroup.path,
            since=(start_time(init) or -1) if isinstance(self.cgroup, PidNamespaceGroup) else 0,
            # Without cgroups, a command belongs to the container by its PID namespace alone.
            join_files=[str(file) for file in self.cgroup.join_files() if file.name != MEMBERS_FILE],
            uid=spec.uid,
            gid=spec.gid,
            nofile=spec.nofile,
            stdio=[],
            filter=b"",
        )
