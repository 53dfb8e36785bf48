"""Runs commands and says how they ended.

A command has a process group of its own, and what is left of the group goes when its time is up or nobody wants the
answer any more. What it writes goes to files in memory rather than through pipes: a server it has left running in the
background would keep a pipe open for ever, and we would wait for it.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

#: What a shell would treat in a special way. A command without any of it means the same with and without a shell.
_SHELL_SYNTAX = frozenset("|&;<>()$`*?[]#~=%{}!\n")
TIMED_OUT = 124
_LONGEST_LOOK = 0.25  # seconds between looks whether the answer is still wanted


class Outcome(NamedTuple):
    """``code`` is negative if a signal ended the command."""

    code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class NotStarted(Exception):
    """There was nothing to run, or it could not be run."""


def arguments(command: str) -> list[str]:
    """Split as a shell would, but run without one; a command that uses what only a shell can do gets a shell."""
    if _SHELL_SYNTAX.intersection(_outside_quotes(command)):
        return ["/bin/sh", "-c", command]
    try:
        split = shlex.split(command)
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
    """Run to the end, to the time-out, or until nobody wants the answer."""
    output, errors = os.memfd_create("stdout"), os.memfd_create("stderr")
    try:
        process = start(argv, cwd, env, subprocess.DEVNULL, output, errors)
        try:
            timed_out = not _ended(process, timeout, is_wanted)
        finally:
            if process.poll() is None:
                end_group(process.pid)
                process.wait()
        code = TIMED_OUT if timed_out else process.returncode
        return Outcome(code, _content(output), _content(errors), timed_out)
    finally:
        os.close(output)
        os.close(errors)


def start(
    argv: Sequence[str], cwd: str | int, env: Mapping[str, str] | None, stdin: int, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a signal to its group reaches what it has started and nothing else."""
    where = f"/proc/self/fd/{cwd}" if isinstance(cwd, int) else cwd
    kept = (cwd,) if isinstance(cwd, int) else ()
    try:
        return subprocess.Popen(
            argv, cwd=where, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, pass_fds=kept
        )
    except (OSError, ValueError) as error:
        raise NotStarted(str(error)) from error


def end_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes], timeout: float | None, is_wanted: Callable[[], bool]) -> bool:
    """False if it had to be given up. Waiting on a handle answers at once, where ``Popen.wait`` would doze."""
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        left = timeout
        while True:
            look = _LONGEST_LOOK if left is None else min(left, _LONGEST_LOOK)
            if poll.poll(look * 1000):
                process.wait()
                return True
            if left is not None:
                left -= look
                if left <= 0:
                    return False
            if not is_wanted():
                return False
    finally:
        os.close(handle)


def _outside_quotes(command: str) -> str:
    """The command without what stands in single quotes, which means nothing to a shell, and with what stands in double
    quotes only as far as it does."""
    kept: list[str] = []
    quote = ""
    position = 0
    while position < len(command):
        letter = command[position]
        if letter == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            if letter == quote:
                quote = ""
            elif quote == '"' and letter in "$`":
                kept.append(letter)
        elif letter in "'\"":
            quote = letter
        else:
            kept.append(letter)
        position += 1
    return "".join(kept)


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
