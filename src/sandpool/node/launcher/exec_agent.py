"""The exec agent: a process in a container's namespaces that starts commands there.

It is confined as the container's own processes are (``enter`` is how it got there), except that they cannot see it:
setns(2) to a PID namespace applies to children, so commands are in the container's PID namespace and the exec agent is
not. The cost of entering, above all copying a Python process and its pages, is paid once and not for every command.

Only the node agent talks to it, through a socket. When that is closed the exec agent exits; the commands keep running.
It does not outlive its container, because it is in the container's cgroup.

Commands are started with ``posix_spawn``. A fork of a Python process costs more than a millisecond before its first
instruction, and a page fault for every page that the child touches; ``posix_spawn`` shares the memory with the child
until that executes the program. Python's own ``os.posix_spawn`` lacks options where it was built against an old C
library, so the C function is called directly.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from sandpool.node.launcher.messages import answer, error_reply, receive_request
from sandpool.node.runtimes.runtime import NoSuchCommand, NotExecutable, RuntimeFailure

_STANDARD: Final = range(3)
_NONE_ENDED: Final = (0, 0)  # the result of waitpid
# The errors for "no more processes": too many, no memory, or the PID namespace has no first process any more.
_NO_PROCESS: Final = (errno.EAGAIN, errno.ENOMEM)


_SET_DEFAULT_SIGNALS: Final = 0x04
_SET_SESSION: Final = 0x80
# More than the size of the attributes, actions and signal sets of any C library.
_STRUCT_SIZE: Final = 1024

_libc = ctypes.CDLL(None)
_attributes = ctypes.create_string_buffer(_STRUCT_SIZE)
_libc.posix_spawnattr_init(_attributes)
_libc.posix_spawnattr_setflags(_attributes, ctypes.c_short(_SET_DEFAULT_SIGNALS | _SET_SESSION))
# All signals, with those that the C library reserves and would leave ignored.
_libc.posix_spawnattr_setsigdefault(_attributes, b"\xff" * _STRUCT_SIZE)
# A session leader that opens a terminal (inheriting is not enough) gets it as its controlling terminal. Standard output
# is a path to the terminal; it is reopened as standard input.
_take_terminal = ctypes.create_string_buffer(_STRUCT_SIZE)
_libc.posix_spawn_file_actions_init(_take_terminal)
_libc.posix_spawn_file_actions_addopen(_take_terminal, 0, b"/proc/self/fd/1", os.O_RDWR, 0)


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
    """``nowhere`` is a descriptor of /dev/null: its standard input, output and error while it is idle.

    It never waits for a particular child: a process that traces an ended child can delay its end for as long as it
    likes, and a child can give its parent further children that were not requested."""

    def __init__(self, agent: socket.socket, nowhere: int) -> None:
        self.agent = agent
        self.nowhere = nowhere
        self._requests: dict[int, int] = {}  # by the PIDs of those that run

    def serve(self) -> None:
        """Serve requests until the node agent closes the socket."""
        gc.enable()  # objects from before the fork stay frozen
        ended = _notify_of_ended_children()
        poll = select.poll()
        for descriptor in (self.agent.fileno(), ended):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == ended:
                    os.read(ended, select.PIPE_BUF)
                    self._reap()
                elif not self._serve_request():
                    return

    def _serve_request(self) -> bool:
        received = receive_request(self.agent)
        if received is None:
            return False
        try:
            self._began(received.number, self._execute(ExecRequest.decode(received.data), received.descriptors))
        except Exception as error:  # noqa: BLE001 - report it to the node agent and serve the next request
            answer(self.agent, {"request": received.number, **error_reply(error)})
        finally:
            for descriptor in received.descriptors:
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
            with suppress(OSError):  # a sandbox may deny itself access to its root
                os.chdir("/")  # keep no directory busy

    def _began(self, number: int, pid: int) -> None:
        """Report a started command. Its PID cannot be reused before this process has waited for it."""
        try:
            pidfd = os.pidfd_open(pid)
            try:
                answer(self.agent, {"request": number, "pid": pid}, pidfd)
            finally:
                os.close(pidfd)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            why = "its user has too many descriptors open or in transit"
            raise RuntimeFailure(f"the command was killed, because {why}: {error.strerror}") from error
        self._requests[pid] = number

    def _reap(self) -> None:
        """Wait for all ended children, and report those that were requested."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != _NONE_ENDED:
                pid, status = ended
                if (number := self._requests.pop(pid, None)) is not None:
                    answer(self.agent, {"request": number, "ended": status})


def _notify_of_ended_children() -> int:
    """Return a descriptor that is readable when children have ended."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reader


def execute(request: ExecRequest) -> int:
    """Start a command with the standard descriptors and the user of this process, and return its PID."""
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
    """Existing paths of the program. Looking for a file is cheaper than trying to execute it."""
    if "/" in program:
        return [program]
    directories = env.get("PATH", os.defpath).split(os.pathsep)
    return [path for each in directories if os.path.exists(path := os.path.join(each, program))]


def _check_words(request: ExecRequest) -> None:
    if any("\0" in word for word in (*request.argv, *request.env, *request.env.values(), request.cwd)):
        raise RuntimeFailure("neither arguments nor variables nor paths may contain a zero byte")
    if any("=" in name for name in request.env):
        raise RuntimeFailure("no variable may have a name with an equals sign in it")


def spawn(program: str, argv: Sequence[str], env: Mapping[str, str], *, terminal: bool) -> int:
    """Start a program in a new session and return its PID. It has default signal handlers and inherits the descriptors;
    with ``terminal`` the first three are its controlling terminal. Raises OSError if it cannot be executed."""
    pid = ctypes.c_int()
    error: int = _libc.posix_spawn(
        ctypes.byref(pid),
        os.fsencode(program),
        _take_terminal if terminal else None,
        _attributes,
        _words(argv),
        _words([f"{name}={value}" for name, value in env.items()]),
    )
    if error:
        raise OSError(error, os.strerror(error), program)
    return pid.value


def _words(words: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)
