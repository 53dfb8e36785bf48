"""Standard input that ends with the first who attaches to it (``stdinOnce``).

Who reads a FIFO is at its end when nobody has it open for writing. So somebody has to, from the container's start until
the first who attached has gone, and whatever becomes of the agent meanwhile: a process of its own, the *holder*. It is
in the container's cgroup and goes with the container, or when a line is written to the FIFO that it waits at.

The FIFO for input is there by its name until somebody takes it. That it has none any more is how everybody who comes
later knows, another agent too; for one that was killed is an attachment that has ended.
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

#: The FIFO that is read by the container.
STDIN: Final = "stdin"
#: The FIFO that is read by the holder.
HELD: Final = "stdin-held"

_WAIT: Final = ("/bin/sh", "-c", "read line")
_FILES: Final = 16  # more than a shell opens


class Ends(NamedTuple):
    """Of both FIFOs; closing them is up to who has opened them."""

    reader: int  # for the container
    writer: int  # for the holder
    waiting: int  # likewise


def open_ends(directory: Path) -> Ends:
    # Neither end of a FIFO can be opened alone without waiting for the other.
    both = os.open(directory / STDIN, os.O_RDWR | os.O_CLOEXEC)
    try:
        reader, writer = (os.open(directory / STDIN, mode | os.O_CLOEXEC) for mode in (os.O_RDONLY, os.O_WRONLY))
    finally:
        os.close(both)
    return Ends(reader, writer, os.open(directory / HELD, os.O_RDWR | os.O_CLOEXEC))


def holder(pod: PodSandbox, cgroup: Group, ends: Ends) -> UnconfinedRequest:
    """The order for it. It is the pod's user's, as everything in the cgroup is that is not the container's watcher."""
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
        stdio=[ends.waiting, ends.writer, ends.waiting],  # if it complains, then not to the container
        filter=b"",
    )


def take(directory: Path) -> int | None:
    """The end to write to, for the first who asks; ``end`` must follow when it was closed. None for all others, and if
    nobody reads any more."""
    try:
        descriptor = os.open(directory / STDIN, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    (directory / STDIN).unlink()
    return descriptor


def is_taken(directory: Path) -> bool:
    return not (directory / STDIN).exists()


def end(directory: Path) -> None:
    """Send the holder away. Does nothing if it is gone."""
    with suppress(OSError):
        descriptor = os.open(directory / HELD, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)
