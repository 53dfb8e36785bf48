"""From a forked child of the launcher to a command in a container that runs, confined as the container is.

To enter the namespaces of a container is the easy part, and alone it is a hole: such a process keeps root's
capabilities, has no seccomp filter, is in no cgroup of the container's and can be seen from inside while it still is
what it was. So in this order: into the cgroups; undumpable, so that nobody in the container can look into it; into the
namespaces; become the container's user; drop every capability for good; no new privileges; the filter; execute.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from sandpool.node.cgroups.membership import began
from sandpool.node.launcher import kernel
from sandpool.node.launcher.birth import arrange, enter_cgroups, limit_resources, take_terminal
from sandpool.node.launcher.unprivileged import is_unprivileged
from sandpool.node.runtimes.runtime import NoSuchCommand

_NAMESPACES: Final = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWCGROUP
)


class Entry(NamedTuple):
    pid: int  # of a process of the container, on the host
    cgroup: str  # its path in the unified hierarchy, by which the process is known to be the container's
    since: int  # when the process began, by which it is known where there are no cgroups; otherwise 0
    entrances: list[str]
    uid: int  # inside
    gid: int
    nofile: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    tty: bool
    stdio: list[int]
    filter: bytes


def become_command(order: Entry, report: int) -> None:
    """Does not return: the process that becomes the command is a child of the caller's parent, and the caller exits.
    ``report`` is where its PID goes, and which is closed when the command is executed."""
    target = os.pidfd_open(order.pid)
    if not (began(order.pid) == order.since if order.since else belongs(order.pid, order.cgroup)):
        raise ProcessLookupError("the container does not run")
    enter_cgroups(order.entrances)
    limit_resources(order.nofile)
    kernel.hide()
    if not is_unprivileged():
        os.setgroups([])
    kernel.setns(target, _NAMESPACES)
    pid = kernel.fork_sibling()
    if pid > 0:
        os.write(report, b'{"pid": %d}\n' % pid)
        os._exit(0)
    os.setsid()
    os.umask(0o022)
    if order.tty:
        take_terminal(order.stdio[0])
    arrange(order.stdio, report)
    os.setresgid(order.gid, order.gid, order.gid)
    os.setresuid(order.uid, order.uid, order.uid)
    try:
        os.chdir(order.cwd)
    except OSError as error:
        raise NoSuchCommand(f"no such working directory: {order.cwd}") from error
    kernel.drop_capabilities()
    kernel.no_new_privileges()
    kernel.filter_system_calls(order.filter)
    program = order.argv[0]
    try:
        os.execvpe(program, order.argv, order.env)
    except FileNotFoundError as error:
        why = "no such file or directory" if "/" in program else "executable file not found in $PATH"
        raise NoSuchCommand(f'exec: "{program}": {why}') from error
    except OSError as error:
        raise NoSuchCommand(f'exec: "{program}": {error.strerror}') from error


def belongs(pid: int, cgroup: str) -> bool:
    with open(f"/proc/{pid}/cgroup") as file:
        return any(line.rstrip("\n") == f"0::/{cgroup}" for line in file)
