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
from typing import Final, NamedTuple

from sandpool.node.launcher.messages import answer, complaint, receive_order
from sandpool.node.launcher.spawn import spawn
from sandpool.node.runtimes.runtime import NoSuchCommand, RuntimeFailure

_STANDARD: Final = range(3)
# What the kernel says if there can be no other process: too many, no memory, or nobody left in the PID namespace.
_NO_PROCESS: Final = (errno.EAGAIN, errno.ENOMEM)


class Errand(NamedTuple):
    """A command to be executed."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    tty: bool

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, data: bytes) -> Errand:
        return cls(*json.loads(data))


class Porter:
    """``nowhere`` is what it has as standard input, output and error while it waits."""

    def __init__(self, agent: socket.socket, nowhere: int) -> None:
        self.agent = agent
        self.nowhere = nowhere
        self._poll = select.poll()
        # By the descriptor of a process: the number of its order, and its PID.
        self._running: dict[int, tuple[int, int]] = {}

    def serve(self) -> None:
        """Until the agent has no more errands."""
        gc.enable()  # what was there before is exempt
        self._poll.register(self.agent, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._running:
                    self._bury(descriptor)
                elif not self._take_errand():
                    return

    def _take_errand(self) -> bool:
        order = receive_order(self.agent)
        if order is None:
            return False
        try:
            pid = self._execute(Errand.decode(order.data), order.descriptors)
            pidfd = _opened(pid)
        except Exception as error:  # noqa: BLE001 - whatever it is, the agent must hear of it, and the next may do better
            answer(self.agent, {"order": order.number, **complaint(error)})
            return True
        finally:
            for descriptor in order.descriptors:
                os.close(descriptor)
        answer(self.agent, {"order": order.number, "pid": pid}, pidfd)
        self._running[pidfd] = order.number, pid
        self._poll.register(pidfd, select.POLLIN)
        return True

    def _execute(self, errand: Errand, stdio: list[int]) -> int:
        for number, descriptor in zip(_STANDARD, stdio, strict=True):
            os.dup2(descriptor, number)
        try:
            return execute(errand)
        finally:
            for number in _STANDARD:
                os.dup2(self.nowhere, number)
            os.chdir("/")  # to be in the way of nobody

    def _bury(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        number, pid = self._running.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        answer(self.agent, {"order": number, "ended": status})


def _opened(pid: int) -> int:
    """The descriptor of a child; nobody else has its PID before we have heard of its end."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # as many are open as may be
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def execute(errand: Errand) -> int:
    """The PID of a command, with the standard descriptors and the user that we have."""
    _check_words(errand)
    program = errand.argv[0]
    try:
        os.chdir(errand.cwd)
    except OSError as error:
        raise NoSuchCommand(f"no such working directory: {errand.cwd}") from error
    refused: OSError | None = None
    for path in _candidates(program, errand.env):
        try:
            return spawn(path, errand.argv, errand.env, terminal=errand.tty)
        except OSError as error:
            if error.errno in _NO_PROCESS:
                raise RuntimeFailure(f"no process can be started: {error.strerror}") from error
            if refused is None or isinstance(refused, FileNotFoundError | NotADirectoryError):
                refused = error
    if refused is None or isinstance(refused, FileNotFoundError | NotADirectoryError):
        why = "no such file or directory" if "/" in program else "executable file not found in $PATH"
        raise NoSuchCommand(f'exec: "{program}": {why}')
    raise NoSuchCommand(f'exec: "{program}": {refused.strerror}')


def _candidates(program: str, env: Mapping[str, str]) -> list[str]:
    """Where the program may be. To try one that is not there costs more than to look."""
    if "/" in program:
        return [program]
    directories = env.get("PATH", os.defpath).split(os.pathsep)
    return [path for each in directories if os.path.exists(path := os.path.join(each, program))]


def _check_words(errand: Errand) -> None:
    if any("\0" in word for word in (*errand.argv, *errand.env, *errand.env.values(), errand.cwd)):
        raise RuntimeFailure("neither arguments nor variables nor paths may contain a zero byte")
    if any("=" in name for name in errand.env):
        raise RuntimeFailure("no variable may have a name with an equals sign in it")
