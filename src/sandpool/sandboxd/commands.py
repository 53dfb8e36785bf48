"""Runs commands to their end and returns exit code and output.

A command has a process group of its own, which is killed when the command times out or the client disconnects. The
result is complete when the command has ended, even if a background process of it still has the output open.
"""

from __future__ import annotations

import os
import select
from _signal import SIGKILL, SIGPIPE, SIGXFSZ  # type: ignore[import-not-found]
from _thread import allocate_lock
from time import monotonic

from sandpool.sandboxd import shell_words
from sandpool.sandboxd.captured_output import DEFAULT_LIMIT, CapturedOutput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import Popen

TIMED_OUT = 124
_POLL_SECONDS = 0.25  # between checks that the client is still connected
_chdir_lock = allocate_lock()  # held from chdir() until the command is spawned there


class Outcome:
    """Result of a command. ``code`` is negative if a signal ended it. The sizes count all output, including what was
    cut off at the limit."""

    def __init__(self, code: int, stdout: CapturedOutput, stderr: CapturedOutput, timed_out: bool = False) -> None:
        self.code = code
        self.stdout = stdout.content
        self.stdout_size = stdout.size
        self.stderr = stderr.content
        self.stderr_size = stderr.size
        self.timed_out = timed_out

    @property
    def is_truncated(self) -> bool:
        return self.stdout_size > len(self.stdout) or self.stderr_size > len(self.stderr)

    @property
    def truncation(self) -> str:
        """A note about the truncation for clients that show only the text; empty if the output is complete."""
        streams = (("stdout", self.stdout, self.stdout_size), ("stderr", self.stderr, self.stderr_size))
        cut = [f"{name} truncated to {len(kept)} of {size} bytes" for name, kept, size in streams if size > len(kept)]
        return f"[{'; '.join(cut)}. Redirect output to a file to keep all of it.]" if cut else ""


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
    limit: int = DEFAULT_LIMIT,
) -> Outcome:
    """Run a command until it ends, times out, or ``is_wanted`` returns False. Keep ``limit`` bytes of each stream.

    Leaves ``cwd`` as the working directory of this process: nothing depends on it, and posix_spawn() cannot set one.
    """
    outputs = [CapturedOutput(limit)]
    try:
        outputs.append(CapturedOutput(limit))
        pid = _spawned(argv, cwd, env, *(output.writer for output in outputs))
        for output in outputs:
            output.close_writer()
        status: int | None = None
        try:
            status = _ended(pid, outputs, timeout, is_wanted)
        finally:
            if status is None:
                end_group(pid)
                os.waitpid(pid, 0)
    finally:
        for output in outputs:
            output.finish()
    stdout, stderr = outputs
    return Outcome(TIMED_OUT if status is None else os.waitstatus_to_exitcode(status), stdout, stderr, status is None)


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


def _ended(
    pid: int, outputs: Sequence[CapturedOutput], timeout: float | None, is_wanted: Callable[[], bool]
) -> int | None:
    """Read output until the process ends, and return its wait status; None after a timeout or disconnect. A pidfd is
    readable at the end of the process."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        streams = {output.reader: output for output in outputs}
        for reader in streams:
            poll.register(reader, select.POLLIN)
        now = monotonic()
        deadline = None if timeout is None else now + timeout
        next_check = now + _POLL_SECONDS
        while True:
            until = next_check if deadline is None else min(deadline, next_check)
            ready = [descriptor for descriptor, _ in poll.poll(max(until - now, 0) * 1000)]
            if handle in ready:
                return os.waitpid(pid, 0)[1]
            for descriptor in ready:
                if not streams[descriptor].read():
                    poll.unregister(descriptor)
            now = monotonic()
            if deadline is not None and now >= deadline:
                return None
            if now >= next_check:
                if not is_wanted():
                    return None
                next_check = now + _POLL_SECONDS
    finally:
        os.close(handle)
