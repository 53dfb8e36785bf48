"""Turns a forked child of the launcher into the exec agent of a running container, confined as the container is.

Entering the namespaces of a container is the easy part, and alone it is a hole: such a process keeps root's
capabilities, has no seccomp filter, is not in the container's cgroups and can be inspected from inside. The sequence is
therefore: join the cgroups; become undumpable, so that no process in the container can inspect it; enter the
namespaces; become the container's user; drop every capability; set no_new_privs; load the filter. Commands are its
children and inherit all of this. The first thing in the container that can be inspected is the program they execute.
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
# Descriptors of an exec agent besides standard input, output and error. Commands do not inherit them.
_AGENT, _NOWHERE = 3, 4


class EnterRequest(NamedTuple):
    pid: int  # of a process of the container, on the host
    cgroup: str  # its path in the unified hierarchy, which identifies the process as the container's
    since: int  # start time of the process, which identifies it where there are no cgroups; otherwise 0
    join_files: list[str]
    uid: int  # inside
    gid: int
    nofile: int
    stdio: list[int]  # one: the socket for requests
    filter: bytes


def become_exec_agent(request: EnterRequest, report: int) -> None:
    """Enter the container and serve requests; does not return. ``report`` is closed once inside."""
    target = os.pidfd_open(request.pid)
    if not (start_time(request.pid) == request.since if request.since else belongs(request.pid, request.cgroup)):
        raise ProcessLookupError("the container is not running")
    enter_cgroups(request.join_files)
    limit_resources(request.nofile)
    syscalls.hide()
    if not is_unprivileged():
        os.setgroups([])
    os.umask(0o022)
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    _disable_imports()
    syscalls.setns(target, _NAMESPACES)
    arrange([nowhere, nowhere, nowhere, request.stdio[0], nowhere], report)
    for descriptor in (_AGENT, _NOWHERE):
        os.set_inheritable(descriptor, False)
    os.setresgid(request.gid, request.gid, request.gid)
    os.setresuid(request.uid, request.uid, request.uid)
    syscalls.hide()  # again: a change of user makes a process dumpable if the machine is configured so
    syscalls.drop_capabilities()
    syscalls.no_new_privileges()
    syscalls.filter_system_calls(request.filter)
    os.close(report)
    ExecAgent(socket.socket(fileno=_AGENT), _NOWHERE).serve()
    os._exit(0)


def _disable_imports() -> None:
    """Disable imports: from now on the files are the container's, and its modules are not to be trusted."""
    sys.meta_path.clear()
    sys.path.clear()


def belongs(pid: int, cgroup: str) -> bool:
    with open(f"/proc/{pid}/cgroup") as file:
        return any(line.rstrip("\n") == f"0::/{cgroup}" for line in file)
