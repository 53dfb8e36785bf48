"""A runtime without isolation: containers are ordinary processes of this machine and see whatever those see.

It is for trying things out where no other runtime works, above all without root, and only available with an explicit
flag. It runs programs of this machine in a directory of their own, keeps their output, reports their exit codes, adopts
them, pauses and kills them. With root, each pod has its own user, network and limits. Without root, there are no limits
(see ``cgroups.environment_groups``) and the network is the host's loopback interface.

It refuses what it cannot do: images with a root file system, and mounts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.environment_groups import group_environment
from sandpool.node.cgroups.group import Group
from sandpool.node.cgroups.mounts import NoCgroups
from sandpool.node.launcher.unconfined import UnconfinedRequest
from sandpool.node.runtimes import selftest
from sandpool.node.runtimes.container import LaunchedContainer, LaunchedProcess, LaunchedRuntime
from sandpool.node.runtimes.process_tracker import ProcessTracker, UnconfinedProcessTracker
from sandpool.node.runtimes.runtime import (
    Command,
    ContainerSpec,
    HostToolchain,
    PodSandbox,
    RuntimeFailure,
    Stdio,
    Tmpfs,
)
from sandpool.node.runtimes.terminal import Terminal, open_terminal

PROCESS: Final = "process"
#: The warning shown wherever it is used.
WARNING: Final = "pods of the runtime process are NOT ISOLATED from this machine and from each other"
# The address that the built-in images listen on: in a shared network, every pod must use its own.
_LISTEN: Final = "SANDBOX_LISTEN_HOST"


class ProcessRuntime(LaunchedRuntime):
    @property
    def name(self) -> str:
        return PROCESS

    async def probe(self) -> str | None:
        try:
            self.cgroups.check()
        except NoCgroups as error:
            return str(error)
        return await selftest.run(self, self.directory, expected={})

    def tracker(self, status: Path, cgroup: Group) -> ProcessTracker:
        return UnconfinedProcessTracker(status, cgroup)

    def container(self, pod: PodSandbox, spec: ContainerSpec) -> ProcessContainer:
        return ProcessContainer(self, pod, spec)

    def container_request(self, container: LaunchedContainer, stdio: list[int]) -> UnconfinedRequest:
        spec = container.spec
        return self._request(container, spec.argv, spec.env, spec.cwd, spec.tty, stdio, str(container.tracker.status))

    def command_request(self, container: LaunchedContainer, command: Command, stdio: Stdio) -> UnconfinedRequest:
        spec, descriptors = container.spec, [stdio.stdin, stdio.stdout, stdio.stderr]
        env = spec.env if command.env is None else command.env
        cwd = spec.cwd if command.cwd is None else command.cwd
        return self._request(container, command.argv, env, cwd, command.tty, descriptors, "")

    def _request(
        self,
        container: LaunchedContainer,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        cwd: str,
        tty: bool,
        stdio: list[int],
        status: str,
    ) -> UnconfinedRequest:
        pod, home = container.pod, str(home_of(container.pod, container.spec.name))
        wanted = container.spec.cwd
        place = home if not os.path.isdir(wanted) or wanted == "/" else wanted
        return UnconfinedRequest(
            uid=pod.host_uid,
            gid=pod.host_gid,
            netns="" if pod.netns is None else str(pod.netns),
            join_files=[str(file) for file in container.cgroup.join_files()],
            argv=list(argv),
            # A variable with the expected working directory gets the actual one.
            env={name: place if value == wanted else value for name, value in env.items()}
            | {"HOME": home}
            | ({_LISTEN: pod.address} if pod.netns is None and pod.address else {})
            | group_environment(container.cgroup),
            cwd=place if cwd == wanted else cwd,
            tty=tty,
            nofile=container.spec.nofile,
            status=status,
            stdio=stdio,
            filter=b"",
        )


class ProcessContainer(LaunchedContainer):
    """Its home directory stands for a root file system: it is removed with the container."""

    runtime: ProcessRuntime

    async def execute(self, command: Command, stdio: Stdio) -> LaunchedProcess:
        self.check_running()
        return LaunchedProcess(await self.runtime.launcher.launch(self.runtime.command_request(self, command, stdio)))

    def make(self) -> None:
        check(self.spec)
        super().make()
        home = home_of(self.pod, self.spec.name)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        os.chown(home, self.pod.host_uid, self.pod.host_gid)

    def inside(self) -> list[int]:
        return [pid for pid in self.cgroup.processes() if pid]  # there is no namespace to tell them apart by

    def open_terminal(self) -> Terminal:
        self.check_running()
        return open_terminal(self.pod.host_uid, self.pod.host_gid)

    async def delete(self) -> None:
        await super().delete()
        shutil.rmtree(home_of(self.pod, self.spec.name), ignore_errors=True)


def check(spec: ContainerSpec) -> None:
    """Raise ``RuntimeFailure`` if the spec needs isolation."""
    if not isinstance(spec.root, HostToolchain):
        raise RuntimeFailure("the process runtime runs built-in images only: others have a root file system")
    mounts = [mount.target for mount in spec.mounts if isinstance(mount, Tmpfs) or not mount.optional]
    if mounts:
        raise RuntimeFailure(f"the process runtime cannot mount volumes: {', '.join(mounts)}")
    if spec.read_only_root:
        raise RuntimeFailure("the process runtime cannot make the root read-only")


def home_of(pod: PodSandbox, name: str) -> Path:
    return pod.directory / f"_home-{name}"  # no container can have this name
