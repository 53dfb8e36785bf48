"""Runs commands to their end and returns exit code and output.

A command has a process group of its own, which is killed when the command times out or the client disconnects. Output
goes to files in memory rather than through pipes: a background process that the command leaves running would keep a
pipe open for ever, and reading to its end would never return.
"""

from __future__ import annotations

import os
import select
from _signal import SIGKILL, SIGPIPE, SIGXFSZ  # type: ignore[import-not-found]
from _thread import allocate_lock

from sandpool.sandboxd import shell_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import Popen

TIMED_OUT = 124
_POLL_SECONDS = 0.25  # between checks that the client is still connected
_chdir_lock = allocate_lock()  # held from chdir() until the command is spawned there


class Outcome:
    """Result of a command. ``code`` is negative if a signal ended it."""

    def __init__(self, code: int, stdout: bytes, stderr: bytes, timed_out: bool = False) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        self.timed_out = timed_out


class NotStarted(Exception):
    """The command is empty or could not be started."""


def arguments(command: str) -> list[str]:
    """Return the argument vector of a command line. A shell is used only if the command has shell syntax."""
    if shell_words.needs_shell(command):
        return ["/bin/sh", "-c", command]
    try:
        split = shell_words.split(command)
    except ValueError as error:
        raise NotStarted(str(error)) from error
    if not split:
        raise NotStarted("the command is empty")
    return split


def run(
    argv: Sequence[str],
    cwd: str | int,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Run a command until it ends, times out, or ``is_wanted`` returns False.

    Leaves ``cwd`` as the working directory of this process: nothing depends on it, and posix_spawn() cannot set one.
    """
    files = [os.memfd_create("stdout")]
    try:
        files.append(os.memfd_create("stderr"))
        output, errors = files
        pid = _spawned(argv, cwd, env, output, errors)
        status: int | None = None
        try:
            status = _ended(pid, timeout, is_wanted)
        finally:
            if status is None:
                end_group(pid)
                os.waitpid(pid, 0)
        code = TIMED_OUT if status is None else os.waitstatus_to_exitcode(status)
        return Outcome(code, _content(output), _content(errors), status is None)
    finally:
        for file in files:
            os.close(file)


def start(
    argv: Sequence[str], cwd: int, env: Mapping[str, str] | None, stdin: int, stdout: int, stderr: int
) -> Popen[bytes]:
    """Start a process in the open directory ``cwd``. It leads a session of its own, so that a signal to its group
    reaches its children and no other process."""
    import subprocess

    where = f"/proc/self/fd/{cwd}"
    try:
        return subprocess.Popen(
            argv, cwd=where, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, pass_fds=(cwd,)
        )
    except (OSError, ValueError) as error:
        raise NotStarted(str(error)) from error


def end_group(pid: int) -> None:
    try:  # noqa: SIM105 - contextlib is not imported
        os.killpg(pid, SIGKILL)
    except ProcessLookupError:
        pass


def _spawned(argv: Sequence[str], cwd: str | int, env: Mapping[str, str] | None, stdout: int, stderr: int) -> int:
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    try:
        with _chdir_lock:
            os.chdir(cwd)
            # Python ignores these two signals; other programs expect the default action.
            return os.posix_spawnp(
                argv[0] if env is None else _found(argv[0], env),
                list(argv),
                os.environ if env is None else env,
                file_actions=streams,
                setsid=True,
                setsigdef=(SIGPIPE, SIGXFSZ),
            )
    except (OSError, ValueError) as error:
        raise NotStarted(str(error)) from error


def _found(program: str, env: Mapping[str, str]) -> str:
    """Return the path of a program, searched in the PATH of ``env``."""
    if "/" in program or "\0" in program:
        return program  # a path, or invalid and rejected by posix_spawn()
    from shutil import which

    found = which(program, path=env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(2, os.strerror(2), program)
    return found


def _ended(pid: int, timeout: float | None, is_wanted: Callable[[], bool]) -> int | None:
    """Return the wait status, None after a timeout or disconnect. A pidfd is readable at the end of the process."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        left = timeout
        while True:
            step = _POLL_SECONDS if left is None else min(left, _POLL_SECONDS)
            if poll.poll(step * 1000):
                return os.waitpid(pid, 0)[1]
            if left is not None:
                left -= step
                if left <= 0:
                    return None
            if not is_wanted():
                return None
    finally:
        os.close(handle)


def _content(file: int) -> bytes:
    size = os.fstat(file).st_size
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = os.pread(file, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
