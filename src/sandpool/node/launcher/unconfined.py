"""Turns a forked child of the launcher into an unconfined program, for the runtime without isolation.

With root, the program still gets the pod's own user, network namespace and cgroups. Without root, it is a process like
any other of its user.
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
    """``status`` is the file to which a watcher process writes the exit code; empty for a command in a container, whose
    end the launcher reports."""

    uid: int
    gid: int
    netns: str  # empty: that of the launcher
    join_files: list[str]  # of its cgroups; empty if it has none
    argv: list[str]
    env: dict[str, str]
    cwd: str
    tty: bool
    nofile: int
    status: str
    stdio: list[int]
    filter: bytes  # unused


def become_unconfined(request: UnconfinedRequest, report: int) -> None:
    """Execute the program; does not return. ``report`` is closed by the execution."""
    os.umask(0o022)
    os.setsid()
    enter_cgroups(request.join_files)
    if request.netns:
        enter_network(Path(request.netns))
    if request.status:
        _fork_watcher(request.status, report)
    if request.tty:
        take_terminal(request.stdio[0])
    limit_resources(request.nofile)
    arrange(request.stdio, report)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(request.gid, request.gid, request.gid)
        os.setresuid(request.uid, request.uid, request.uid)
    syscalls.no_new_privileges()
    try:
        os.chdir(request.cwd)
    except OSError as error:
        raise NoSuchCommand(f"no such working directory: {request.cwd}") from error
    try:
        os.execvpe(request.argv[0], request.argv, request.env)
    except OSError as error:
        kind = NoSuchCommand if isinstance(error, FileNotFoundError | NotADirectoryError) else NotExecutable
        raise kind(f'exec: "{request.argv[0]}": {error.strerror}') from error


def _fork_watcher(status: str, report: int) -> None:
    """Return in a child. The parent stays as the watcher: it waits for the child and writes its exit code."""
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
