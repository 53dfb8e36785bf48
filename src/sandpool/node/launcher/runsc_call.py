"""From a forked child of the launcher to a call of the program that confines a container: for containers that nobody
can be put into from outside, because their kernel is not the host's.

The call is made where the program was started, on the container's stage, as root, and in the container's cgroups: it
goes when the container goes. Nothing of it is in the container.
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
    """``process`` is what shall be executed, as an OCI runtime is told it; it is the file after the last of ``stdio``.
    Empty if nothing is executed."""

    pid: int  # of the container's watcher, on the host
    cgroup: str  # by which that is known to be the container's
    join_files: list[str]
    argv: list[str]  # of the program that confines
    process: dict[str, Any]
    stdio: list[int]
    filter: bytes  # not used: the program that confines has its own


def become_runsc_call(order: RunscCallRequest, report: int) -> None:
    """Does not return. ``report`` is closed when the program that confines is executed."""
    target = os.pidfd_open(order.pid)
    if not belongs(order.pid, order.cgroup):
        raise ProcessLookupError("the container does not run")
    enter_cgroups(order.join_files)
    os.setsid()
    os.umask(0o022)
    limit_resources()
    syscalls.setns(target, syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
    descriptors = list(order.stdio)
    if order.process:
        _check(order.process)
        if order.process["terminal"]:
            take_terminal(order.stdio[0])
        descriptors.append(memfd(json.dumps(order.process).encode()))
    arrange(descriptors, report)
    os.execve(order.argv[0], order.argv, {})


def _check(process: dict[str, Any]) -> None:
    """What runsc would only complain about to whoever reads its standard error."""
    root = Root(SANDBOX, 0, 0)
    cwd, path = process["cwd"], dict(each.split("=", 1) for each in process["env"]).get("PATH", os.defpath)
    if not root.exists(cwd):
        raise NoSuchCommand(f"no such working directory: {cwd}")
    root.check_program(process["args"][0], cwd, path)
    root.close()
