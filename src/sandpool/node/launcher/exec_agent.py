"""What a porter does once it is inside: it lets commands into its container, until it is told to go.

A porter is a process in a container's cgroups and namespaces, confined as the container's own processes are (see
``entry`` for how it came there), but for one thing: those inside do not see it. To enter a process into a PID namespace
is to say where its children go, so commands are in there and the porter is not. What it takes to enter, most of all
copying a Python process and its pages, is paid once and not for every command.

It is spoken to through a socket, by the agent alone. When that is closed it goes; what it has started stays. It does
not outlive its container, because it is in the container's cgroup.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from sandpool.node.launcher.messages import answer, error_reply, receive_request
from sandpool.node.launcher.spawn import spawn
from sandpool.node.runtimes.runtime import NoSuchCommand, NotExecutable, RuntimeFailure

_STANDARD: Final = range(3)
_NOBODY: Final = (0, 0)  # has ended
# What the kernel says if there can be no other process: too many, no memory, or nobody left in the PID namespace.
_NO_PROCESS: Final = (errno.EAGAIN, errno.ENOMEM)


class ExecRequest(NamedTuple):
    """A command to be executed."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    tty: bool

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, data: bytes) -> ExecRequest:
        return cls(*json.loads(data))


class ExecAgent:
    """``nowhere`` is what it has as standard input, output and error while it waits.

    It waits for no child in particular. A child that has ended may be kept by another process that traces it, for as
    long as that likes, and a child may give its parent further children that nobody has asked for."""

    def __init__(self, agent: socket.socket, nowhere: int) -> None:
        self.agent = agent
        self.nowhere = nowhere
        self._orders: dict[int, int] = {}  # by the PIDs of those that run

    def serve(self) -> None:
        """Until the agent has no more errands."""
        gc.enable()  # what was there before is exempt
        ended = _hear_of_children()
        poll = select.poll()
        for descriptor in (self.agent.fileno(), ended):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == ended:
                    os.read(ended, select.PIPE_BUF)
                    self._bury()
                elif not self._take_errand():
                    return

    def _take_errand(self) -> bool:
        order = receive_request(self.agent)
        if order is None:
            return False
        try:
            self._began(order.number, self._execute(ExecRequest.decode(order.data), order.descriptors))
        except Exception as error:  # noqa: BLE001 - whatever it is, the agent must hear of it, and the next may do better
            answer(self.agent, {"order": order.number, **error_reply(error)})
        finally:
            for descriptor in order.descriptors:
                os.close(descriptor)
        return True

    def _execute(self, request: ExecRequest, stdio: list[int]) -> int:
        for number, descriptor in zip(_STANDARD, stdio, strict=True):
            os.dup2(descriptor, number)
        try:
            return execute(request)
        finally:
            for number in _STANDARD:
                os.dup2(self.nowhere, number)
            with suppress(OSError):  # a sandbox may forbid itself its root
                os.chdir("/")  # to be in the way of nobody

    def _began(self, number: int, pid: int) -> None:
        """Nobody else has the PID before we have heard of its end."""
        try:
            pidfd = os.pidfd_open(pid)
            try:
                answer(self.agent, {"order": number, "pid": pid}, pidfd)
            finally:
                os.close(pidfd)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            why = "its user has too many descriptors open or on their way"
            raise RuntimeFailure(f"the command was ended, because {why}: {error.strerror}") from error
        self._orders[pid] = number

    def _bury(self) -> None:
        """All that have ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != _NOBODY:
                pid, status = ended
                if (number := self._orders.pop(pid, None)) is not None:
                    answer(self.agent, {"order": number, "ended": status})


def _hear_of_children() -> int:
    """A descriptor that is readable when children have ended."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reader


def execute(request: ExecRequest) -> int:
    """The PID of a command, with the standard descriptors and the user that we have."""
    _check_words(request)
    program = request.argv[0]
    try:
        os.chdir(request.cwd)
    except OSError as error:
        raise NoSuchCommand(f"no such working directory: {request.cwd}") from error
    refused: OSError | None = None
    for path in _candidates(program, request.env):
        try:
            return spawn(path, request.argv, request.env, terminal=request.tty)
        except OSError as error:
            if error.errno in _NO_PROCESS:
                raise RuntimeFailure(f"no process can be started: {error.strerror}") from error
            if refused is None or isinstance(refused, FileNotFoundError | NotADirectoryError):
                refused = error
    if refused is None or isinstance(refused, FileNotFoundError | NotADirectoryError):
        why = "no such file or directory" if "/" in program else "executable file not found in $PATH"
        raise NoSuchCommand(f'exec: "{program}": {why}')
    raise NotExecutable(f'exec: "{program}": {refused.strerror}')


def _candidates(program: str, env: Mapping[str, str]) -> list[str]:
    """Where the program may be. To try one that is not there costs more than to look."""
    if "/" in program:
        return [program]
    directories = env.get("PATH", os.defpath).split(os.pathsep)
    return [path for each in directories if os.path.exists(path := os.path.join(each, program))]


def _check_words(request: ExecRequest) -> None:
    if any("\0" in word for word in (*request.argv, *request.env, *request.env.values(), request.cwd)):
        raise RuntimeFailure("neither arguments nor variables nor paths may contain a zero byte")
    if any("=" in name for name in request.env):
        raise RuntimeFailure("no variable may have a name with an equals sign in it")
