"""From a forked child of the launcher to a program that nothing confines: for the runtime without isolation.

As root the program still gets the pod's own user, network namespace and cgroups, because they are there. A launcher
without privileges can give none of these and makes it a process like any other of its user.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from sandpool.node.cgroups.process_identity import start_time
from sandpool.node.launcher import syscalls
from sandpool.node.launcher.spawn_container import arrange, enter_cgroups, enter_network, limit_resources, take_terminal
from sandpool.node.runtimes.runtime import NoSuchCommand, NotExecutable


class UnconfinedRequest(NamedTuple):
    """``status`` is the file its end is written to, by a process that stays for that; empty for a command in a
    container, whose end is the launcher's to tell."""

    uid: int
    gid: int
    netns: str  # empty: the one we are in
    join_files: list[str]  # of its cgroups, if it has any
    argv: list[str]
    env: dict[str, str]
    cwd: str
    tty: bool
    nofile: int
    status: str
    stdio: list[int]
    filter: bytes  # not used: nothing is forbidden


def become_unconfined(order: UnconfinedRequest, report: int) -> None:
    """Does not return. ``report`` is closed when the program is executed."""
    os.umask(0o022)
    os.setsid()
    enter_cgroups(order.join_files)
    if order.netns:
        enter_network(Path(order.netns))
    if order.status:
        _leave_watcher(order.status, report)
    if order.tty:
        take_terminal(order.stdio[0])
    limit_resources(order.nofile)
    arrange(order.stdio, report)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(order.gid, order.gid, order.gid)
        os.setresuid(order.uid, order.uid, order.uid)
    syscalls.no_new_privileges()
    try:
        os.chdir(order.cwd)
    except OSError as error:
        raise NoSuchCommand(f"no such working directory: {order.cwd}") from error
    try:
        os.execvpe(order.argv[0], order.argv, order.env)
    except OSError as error:
        kind = NoSuchCommand if isinstance(error, FileNotFoundError | NotADirectoryError) else NotExecutable
        raise kind(f'exec: "{order.argv[0]}": {error.strerror}') from error


def _leave_watcher(status: str, report: int) -> None:
    """Go on in a child; the parent waits for it, writes down how it ended, and nothing else."""
    file = os.open(status, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    pid = os.fork()
    if pid == 0:
        os.close(file)
        os.setsid()
        return
    arrange([file], report)
    _write(0, {"watcher": [os.getpid(), start_time(os.getpid())], "program": [pid, start_time(pid)]})
    os.close(report)
    _, ended = os.waitpid(pid, 0)
    _write(0, {"exit-code": os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else 128 + os.WTERMSIG(ended)})
    os._exit(0)


def _write(file: int, data: dict[str, object]) -> None:
    os.write(file, json.dumps(data).encode() + b"\n")
