"""Runs commands and says how they ended.

A command has a process group of its own, and what is left of the group goes when its time is up or nobody wants the
answer any more. What it writes goes to files in memory rather than through pipes: a server it has left running in the
background would keep a pipe open for ever, and we would wait for it.
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
_LONGEST_LOOK = 0.25  # seconds between looks whether the answer is still wanted
_going = allocate_lock()  # held by who has this process go where a command is to be started


class Outcome:
    """``code`` is negative if a signal ended the command."""

    def __init__(self, code: int, stdout: bytes, stderr: bytes, timed_out: bool = False) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        self.timed_out = timed_out


class NotStarted(Exception):
    """There was nothing to run, or it could not be run."""


def arguments(command: str) -> list[str]:
    """Split as a shell would, but run without one; a command that uses what only a shell can do gets a shell."""
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
    """Run to the end, to the time-out, or until nobody wants the answer. This process itself is in ``cwd`` afterwards:
    nothing here depends on where it is, and a command is started most quickly where we are."""
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
    """In a directory that is open. In a session of its own, so that a signal to its group reaches what it has started
    and nothing else."""
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
        with _going:
            os.chdir(cwd)
            # Python ignores two signals that others do not expect to be ignored.
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
    """Where the program is that is meant by who has these variables."""
    if "/" in program or "\0" in program:
        return program  # it is what it is, or will be refused
    from shutil import which

    found = which(program, path=env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(2, os.strerror(2), program)
    return found


def _ended(pid: int, timeout: float | None, is_wanted: Callable[[], bool]) -> int | None:
    """The wait status, None if it had to be given up. Waiting on a handle answers at once."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        left = timeout
        while True:
            look = _LONGEST_LOOK if left is None else min(left, _LONGEST_LOOK)
            if poll.poll(look * 1000):
                return os.waitpid(pid, 0)[1]
            if left is not None:
                left -= look
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
