"""The file that the launcher is executed from.

A porter is a copy of the launcher, and so is its child until it executes something. What a container has executed can
be a link to ``/proc/self/exe``; that is Python itself, and then whoever is in the container has the file open that it
was executed from. Of root's Python that is no more than anybody may read. But to the host the sandboxes of a user who
is not root are that user, and if Python is that user's too, as one from a version manager is, they could change its
mode, and write to it as soon as nobody executes it. So then the launcher is executed from a copy that nobody changes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sandpool.node.launcher.unprivileged import is_unprivileged

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@contextmanager
def sealed_interpreter(program: str) -> Iterator[str]:
    """A path from which to execute a program while in this block, so that sandboxes cannot change it."""
    if not (is_unprivileged() and os.stat(program).st_uid == os.geteuid()):
        yield program
        return
    copy = os.memfd_create("sandpool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(copy, "wb", closefd=False) as file:
            file.write(Path(program).read_bytes())
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        # Not as the descriptor of who is about to execute it, which has closed all that it will not have afterwards.
        yield f"/proc/{os.getpid()}/fd/{copy}"
    finally:
        os.close(copy)
