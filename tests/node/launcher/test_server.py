"""The launcher as a process, told what to do by hand."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sandpool.node.launcher.messages import receive, send_request
from sandpool.node.launcher.requests import encode
from sandpool.node.launcher.unprivileged import DialRequest

NOWHERE = encode(DialRequest("/no/such/network", "127.0.0.1", 1, stdio=[], filter=b""))
PATIENCE = 30.0


class Process:
    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-m", "sandpool.node.launcher", str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)

    def ask(self, number: int) -> None:
        """For what cannot be done, and wait until it was answered."""
        send_request(self.ours, number, NOWHERE, [])
        assert select.select([self.ours], [], [], PATIENCE)[0]

    def end(self) -> tuple[int, str]:
        """How it ends, and what it says, when its agent goes."""
        self.ours.close()
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@pytest.fixture
def launcher() -> Iterator[Process]:
    made = Process()
    yield made
    made.ours.close()
    made.process.kill()
    made.process.communicate()


def test_launcher_replies_with_errors(launcher: Process) -> None:
    launcher.ask(7)
    said, descriptors = receive(launcher.ours, 1)
    assert descriptors == []
    assert json.loads(said) == {
        "request": 7, "error": "/no/such/network: No such file or directory", "kind": "FileNotFoundError",
    }  # fmt: skip


def test_launcher_exits_with_its_agent(launcher: Process) -> None:
    assert launcher.end() == (0, "")


def test_launcher_exits_quietly_with_unread_replies(launcher: Process) -> None:
    launcher.ask(1)
    assert launcher.end() == (0, "")


def test_launcher_ignores_signals_for_its_agent(launcher: Process) -> None:
    launcher.ask(1)  # from then on it is ready
    for number in (1, 2, 13, 15):
        os.kill(launcher.process.pid, number)
    launcher.ask(2)
    assert launcher.process.poll() is None
