"""A child process under control: start, pause, kill and restart it, and read its log when it fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_SETPRIV = shutil.which("setpriv")


class ComponentFailed(Exception):
    """The process ended or missed a deadline; the message contains the tail of its log."""


class Component:
    """A process that writes its log to a file and is only ever signalled through its own handle.

    ``start`` after ``stop`` or ``kill`` runs the same command line again, so a restarted component finds its data,
    its certificates and its port where they were.

    The kernel ends the process with its parent (through ``setpriv``, where installed), because a test run that is
    killed cannot stop it. The parent is the starting thread: a component that a thread pool started ends with the
    pool.
    """

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the process id. Raises ``RuntimeError`` if the process is not running."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        command = [_SETPRIV, "--pdeathsig", "KILL", *self.command] if _SETPRIV else self.command
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self, within: float = 5.0) -> None:
        """Terminate the process, and kill it after ``within`` seconds. Does nothing if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        process.send_signal(signal.SIGCONT)  # a paused process would sleep through the request
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def end(self, within: float = 30.0) -> int:
        """Send SIGTERM, wait for the process and return its exit status."""
        self._signal(signal.SIGTERM)
        return self.wait(within)

    def wait(self, within: float = 30.0) -> int:
        """Wait for the process and return its exit status. Raises ``ComponentFailed`` on a timeout."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        try:
            returned = self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise ComponentFailed(f"{self.name} did not end within {within:g} s\n{self.tail()}") from None
        self._process = None
        return returned

    def kill(self) -> None:
        """Kill the process at once, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Stop the process with its connections open, as a stalled machine would; return when it has stopped."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wait_for(self, text: str, within: float = 30.0, *, since: int = 0) -> None:
        """Wait until the log contains ``text`` after its first ``since`` bytes.

        Raises ``ComponentFailed`` if the process ends before, or after ``within`` seconds."""
        end = time.monotonic() + within
        while True:
            goes_on = self.running and time.monotonic() < end  # asked first: its last words count
            if text.encode() in self._logged(since):
                return
            if not goes_on:
                raise ComponentFailed(f"{self.name} did not say {text!r}\n{self.tail()}")
            time.sleep(0.005)

    def _logged(self, since: int) -> bytes:
        if not self.log.exists():
            return b""
        with self.log.open("rb") as log:
            log.seek(since)
            return log.read()

    def tail(self, lines: int = 20) -> str:
        """Return the end of the log, for error messages."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 64 * 1024))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} is not running")
        self._process.send_signal(number)


class ReservedPort:
    """A loopback port of the operating system's choice that stays reserved while this object is open.

    The reservation is a bound socket that never listens. A component can bind the same port with SO_REUSEPORT or
    SO_REUSEADDR and receives all connections, so the port is never free for others, not even while it restarts.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for option in (socket.SO_REUSEPORT, socket.SO_REUSEADDR):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Rig(ABC):
    """Processes for the length of a ``with``. ``start`` returns when they are usable; ``stop`` leaves nothing."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
