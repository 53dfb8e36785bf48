"""Turns a forked child of the launcher into a call of runsc about a running gVisor container.

The host cannot put a process into such a container, because it has another kernel. The call is made in the mount
namespace in which runsc was started, as root and in the container's cgroups, so it ends with the container. No part of
it is inside the container.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from sandpool.node.launcher import syscalls
from sandpool.node.launcher.enter import belongs
from sandpool.node.launcher.messages import memfd
from sandpool.node.launcher.root_directory import Root
from sandpool.node.launcher.rootfs import SANDBOX
from sandpool.node.launcher.spawn_container import arrange, enter_cgroups, limit_resources, take_terminal
from sandpool.node.runtimes.runtime import NoSuchCommand


class RunscCallRequest(NamedTuple):
    """``process`` is the command to execute, in the format of OCI runtimes; it is passed as the descriptor after the
    last of ``stdio``. Empty if no command is executed."""

    pid: int  # of the container's watcher, on the host
    cgroup: str  # identifies the watcher as the container's
    join_files: list[str]
    argv: list[str]  # of runsc
    process: dict[str, Any]
    stdio: list[int]
    filter: bytes  # unused: runsc has its own


def become_runsc_call(request: RunscCallRequest, report: int) -> None:
    """Execute runsc; does not return. ``report`` is closed by the execution."""
    target = os.pidfd_open(request.pid)
    if not belongs(request.pid, request.cgroup):
        raise ProcessLookupError("the container is not running")
    enter_cgroups(request.join_files)
    os.setsid()
    os.umask(0o022)
    limit_resources()
    syscalls.setns(target, syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
    descriptors = list(request.stdio)
    if request.process:
        _check(request.process)
        if request.process["terminal"]:
            take_terminal(request.stdio[0])
        descriptors.append(memfd(json.dumps(request.process).encode()))
    arrange(descriptors, report)
    os.execve(request.argv[0], request.argv, {})


def _check(process: dict[str, Any]) -> None:
    """Check what runsc would report on the standard error of the command only."""
    root = Root(SANDBOX, 0, 0)
    cwd, path = process["cwd"], dict(each.split("=", 1) for each in process["env"]).get("PATH", os.defpath)
    if not root.exists(cwd):
        raise NoSuchCommand(f"no such working directory: {cwd}")
    root.check_program(process["args"][0], cwd, path)
    root.close()
