"""One process of a control plane: started, paused, killed and restarted on purpose, its log at hand when it fails."""

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
    """It ended, or did not come so far in time; the message carries the tail of its log."""


class Component:
    """A process that writes its log to a file and is only ever signalled through its own handle.

    ``start`` after ``stop`` or ``kill`` runs the same command line again, so a restarted component finds its data,
    its certificates and its port where they were.

    It does not outlive whoever started it: a test run that is killed, or a worker of one that ends without a word,
    has no chance to stop anything, so the kernel does (where ``setpriv`` is there to ask it to). To the kernel that is
    the starting thread; a component started from a pool of threads lives no longer than the pool.
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
        """The process id, for measurements; of a component that is not running there is none."""
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
        """Ask it to end; what has not ended by then is killed. Harmless if it is not running."""
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
        """Ask it to end, and see it end by itself; what it returned."""
        self._signal(signal.SIGTERM)
        return self.wait(within)

    def wait(self, within: float = 30.0) -> int:
        """Wait until it has ended; what it returned. Raises ``ComponentFailed`` if it goes on."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        try:
            returned = self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise ComponentFailed(f"{self.name} did not end within {within:g} s\n{self.tail()}") from None
        self._process = None
        return returned

    def kill(self) -> None:
        """End it at this instant, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Freeze it with its connections open, as a stalled machine would; returns when it has come to a halt."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wait_for(self, text: str, within: float = 30.0, *, since: int = 0) -> None:
        """Wait until it has logged ``text``, not looking at the first ``since`` bytes of the log. Raises
        ``ComponentFailed`` if it ends before, or does not in time."""
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
        """The end of its log, for error messages."""
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
    """A loopback port chosen by the OS that nobody else gets while this is open.

    The reservation is a bound socket that never listens. It does not stand in the way of a component that binds the
    same port with SO_REUSEPORT, and connections go to whoever listens; so there is no moment at which the port is
    free for the taking, not even while the component restarts.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Rig(ABC):
    """``start`` returns when it can be used, or raises having cleaned up. ``stop`` leaves nothing behind."""

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
