"""Readiness notification of a service, in the protocol of sd_notify(3).

``sandpool up`` tells its service manager when it serves and what it does meanwhile. The manager is systemd, or the
``sandpool`` command that started the home in the background."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
_STATUS: Final = "STATUS="
_POLL_SECONDS: Final = 0.2  # between two checks of the process, which may end without a notification


class Notifier:
    """Sends notifications to the socket in the environment. Does nothing without one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get(VARIABLE, "")

    def status(self, text: str) -> None:
        self._send(f"{_STATUS}{text}")

    def ready(self, text: str) -> None:
        self._send(f"{READY}\n{_STATUS}{text}")

    def stopping(self, text: str) -> None:
        self._send(f"STOPPING=1\n{_STATUS}{text}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the null byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(message.encode(), address)


class ReadinessSocket:
    """The receiving end, at a path in a private directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def wait(self, within: float, is_running: Callable[[], bool], progress: Callable[[str], None]) -> bool:
        """Return True when the service is ready, False when it ended or ``within`` seconds have passed.

        ``progress`` receives each status that the service reports."""
        end = time.monotonic() + within
        while True:
            goes_on = is_running() and time.monotonic() < end  # asked first: its last message counts
            while message := self._receive():
                for line in message.splitlines():
                    if line == READY:
                        return True
                    if line.startswith(_STATUS):
                        progress(line.removeprefix(_STATUS))
            if not goes_on:
                return False
            select.select([self._socket], [], [], _POLL_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> str:
        try:
            return self._socket.recv(4096).decode(errors="replace")
        except BlockingIOError:
            return ""
