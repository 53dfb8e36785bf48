"""Standard input that ends with the first attachment (``stdinOnce``).

A FIFO is at its end when no process has it open for writing. A process of its own, the *holder*, therefore has it open
from the container's start until the first attachment ends, even if the agent is killed meanwhile. The holder is in the
container's cgroup. It ends with the container, or when a line is written to the FIFO that it reads.

The name of the FIFO is removed when the first client attaches. Later clients, also those of the next agent, see by that
that standard input is taken; an attachment ends with the agent that serves it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from sandpool.node.cgroups.environment_groups import group_environment
from sandpool.node.cgroups.group import Group
from sandpool.node.launcher.unconfined import UnconfinedRequest
from sandpool.node.runtimes.runtime import PodSandbox

#: The FIFO that the container reads.
STDIN: Final = "stdin"
#: The FIFO that the holder reads.
HELD: Final = "stdin-held"

_WAIT: Final = ("/bin/sh", "-c", "read line")
_FILES: Final = 16  # more than a shell opens


class Ends(NamedTuple):
    """Ends of both FIFOs, which the caller of ``open_ends`` closes."""

    reader: int  # for the container
    writer: int  # for the holder
    waiting: int  # for the holder


def open_ends(directory: Path) -> Ends:
    # Opening one end of a FIFO blocks until the other end is open.
    both = os.open(directory / STDIN, os.O_RDWR | os.O_CLOEXEC)
    try:
        reader, writer = (os.open(directory / STDIN, mode | os.O_CLOEXEC) for mode in (os.O_RDONLY, os.O_WRONLY))
    finally:
        os.close(both)
    return Ends(reader, writer, os.open(directory / HELD, os.O_RDWR | os.O_CLOEXEC))


def holder(pod: PodSandbox, cgroup: Group, ends: Ends) -> UnconfinedRequest:
    """The request for the holder. It runs as the pod's user, like every process in the cgroup except the watcher."""
    return UnconfinedRequest(
        uid=pod.host_uid,
        gid=pod.host_gid,
        netns="",
        join_files=[str(file) for file in cgroup.join_files()],
        argv=list(_WAIT),
        env=group_environment(cgroup),
        cwd="/",
        tty=False,
        nofile=_FILES,
        status="",
        stdio=[ends.waiting, ends.writer, ends.waiting],  # its errors must not reach the container
        filter=b"",
    )


def take(directory: Path) -> int | None:
    """Return the end to write to, for the first caller; call ``end`` after closing it. None for all later callers, and
    if no process reads it any more."""
    try:
        descriptor = os.open(directory / STDIN, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    (directory / STDIN).unlink()
    return descriptor


def is_taken(directory: Path) -> bool:
    return not (directory / STDIN).exists()


def end(directory: Path) -> None:
    """End the holder. Does nothing if it is gone."""
    with suppress(OSError):
        descriptor = os.open(directory / HELD, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)
