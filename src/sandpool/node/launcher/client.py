"""The agent's client of the launcher."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sandpool.node.launcher.channel import Child, ProcessChannel
from sandpool.node.launcher.requests import LaunchRequest, encode
from sandpool.node.launcher.unprivileged import is_unprivileged

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class LauncherClient:
    """Starts a launcher on first use, and a new one if that is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: ProcessChannel | None = None

    @property
    def pid(self) -> int | None:
        """The PID of the launcher, if it runs."""
        return self._process.pid if self._process is not None else None

    async def launch(self, request: LaunchRequest, on_sent: Callable[[], object] = lambda: None) -> Child:
        """Have the launcher start a process. ``on_sent`` is as for ``ProcessChannel.submit``. Raises ``NoSuchCommand``
        if the program is not in the container, ``RuntimeFailure`` for any other failure."""
        data = encode(request)
        while True:
            channel = self._connection()
            try:
                return await channel.submit(data, request.stdio, on_sent=on_sent)
            except ConnectionError:  # not delivered; the next launcher gets it
                if channel is self._channel:
                    self._lost("the launcher is gone")

    def start(self) -> None:
        """Start the launcher now: forking is cheapest while this process is small."""
        self._connection()

    def close(self) -> None:
        """Stop the launcher. Processes that it has started keep running."""
        if self._channel is not None:
            self._lost("the launcher was closed")

    def _connection(self) -> ProcessChannel:
        if self._channel is not None:
            return self._channel
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, sealed_interpreter(sys.executable) as python:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "sandpool.node.launcher", str(theirs.fileno())],
                executable=python,
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel = ProcessChannel(ours, lambda: self._lost("the launcher is gone"))
        return self._channel

    def _lost(self, why: str) -> None:
        assert self._channel is not None and self._process is not None
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        channel.close(why, None)
        process.kill()  # it would exit by itself, later
        process.wait()


@contextmanager
def sealed_interpreter(program: str) -> Iterator[str]:
    """Yield a path from which to execute the interpreter so that sandboxes cannot change its file.

    An exec agent is a copy of the launcher, and so is its child until it executes the command. A command may be a link
    to ``/proc/self/exe``, which is Python itself, and then the container has the file open that it was executed from.
    If root owns that file, the container can only read it. But without root all sandboxes are the same host user as the
    node, and if that user also owns the interpreter (as with a version manager), a sandbox could change its mode and
    write to it once no process executes it. In that case the launcher is executed from a sealed copy in memory."""
    if not (is_unprivileged() and os.stat(program).st_uid == os.geteuid()):
        yield program
        return
    copy = os.memfd_create("sandpool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(copy, "wb", closefd=False) as file:
            file.write(Path(program).read_bytes())
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        # Not /proc/self/fd: the process about to execute it has closed this descriptor.
        yield f"/proc/{os.getpid()}/fd/{copy}"
    finally:
        os.close(copy)
