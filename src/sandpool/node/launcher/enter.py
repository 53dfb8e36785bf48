"""From a forked child of the launcher to the porter of a container that runs, confined as the container is.

To enter the namespaces of a container is the easy part, and alone it is a hole: such a process keeps root's
capabilities, has no seccomp filter, is in no cgroup of the container's and can be seen from inside while it still is
what it was. So in this order: into the cgroups; undumpable, so that nobody in the container can look into it; into the
namespaces; become the container's user; drop every capability for good; no new privileges; the filter. Commands are
its children and have all of this from it; what they execute is the first thing in the container that can be looked at.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Final, NamedTuple

from sandpool.node.cgroups.process_identity import start_time
from sandpool.node.launcher import syscalls
from sandpool.node.launcher.exec_agent import ExecAgent
from sandpool.node.launcher.spawn_container import arrange, enter_cgroups, limit_resources
from sandpool.node.launcher.unprivileged import is_unprivileged

_NAMESPACES: Final = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWCGROUP
)
# What a porter has open besides standard input, output and error. None of it is there for a command.
_AGENT, _NOWHERE = 3, 4


class EnterRequest(NamedTuple):
    pid: int  # of a process of the container, on the host
    cgroup: str  # its path in the unified hierarchy, by which the process is known to be the container's
    since: int  # when the process began, by which it is known where there are no cgroups; otherwise 0
    join_files: list[str]
    uid: int  # inside
    gid: int
    nofile: int
    stdio: list[int]  # one: the socket through which it is given errands
    filter: bytes


def become_exec_agent(order: EnterRequest, report: int) -> None:
    """Does not return. ``report`` is closed when it is inside."""
    target = os.pidfd_open(order.pid)
    if not (start_time(order.pid) == order.since if order.since else belongs(order.pid, order.cgroup)):
        raise ProcessLookupError("the container does not run")
    enter_cgroups(order.join_files)
    limit_resources(order.nofile)
    syscalls.hide()
    if not is_unprivileged():
        os.setgroups([])
    os.umask(0o022)
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    _import_nothing()
    syscalls.setns(target, _NAMESPACES)
    arrange([nowhere, nowhere, nowhere, order.stdio[0], nowhere], report)
    for descriptor in (_AGENT, _NOWHERE):
        os.set_inheritable(descriptor, False)
    os.setresgid(order.gid, order.gid, order.gid)
    os.setresuid(order.uid, order.uid, order.uid)
    syscalls.hide()  # who changes users can be looked into again, if the machine is set up to allow that
    syscalls.drop_capabilities()
    syscalls.no_new_privileges()
    syscalls.filter_system_calls(order.filter)
    os.close(report)
    ExecAgent(socket.socket(fileno=_AGENT), _NOWHERE).serve()
    os._exit(0)


def _import_nothing() -> None:
    """From here on: the files are the container's, and what it has in the place of a module is not to be trusted."""
    sys.meta_path.clear()
    sys.path.clear()


def belongs(pid: int, cgroup: str) -> bool:
    with open(f"/proc/{pid}/cgroup") as file:
        return any(line.rstrip("\n") == f"0::/{cgroup}" for line in file)
