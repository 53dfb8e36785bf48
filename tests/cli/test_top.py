"""``sandpool top`` with a sandbox that uses CPU and memory."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from contextlib import suppress

import pytest
import yaml

from tests.support.playground import WITHIN, Playground, read_until

pytestmark = pytest.mark.isolation
# A process that stays when the command that started it has ended.
_WORK = """import os
os.fork() and os._exit(0)
os.setsid()
block = b"x" * 50_000_000
for descriptor in range(3):
    os.close(descriptor)
while True:
    pass
"""


def test_a_busy_sandbox_is_shown_with_its_cpu_and_memory(home: Playground) -> None:
    home.works("claim", "busy")
    try:
        home.works("exec", "busy", "--", "python3", "-c", _WORK)
        lines = [line.split() for line in home.works("top").splitlines()]
        assert lines[0] == ["POOL", "READY", "CLAIMED", "CPU", "MEMORY"]
        pool = next(line for line in lines if line[:1] == ["python"])
        assert pool[2] == "1"
        name, state, cpu, memory, unit, *_ = next(line for line in lines if line[:1] == ["busy"])
        assert (name, state, unit) == ("busy", "Ready", "MiB")
        assert 0.05 < float(cpu) < 3
        assert float(memory) > 45
        assert float(pool[3]) >= float(cpu)
        assert home.works("top", "-o", "wide").splitlines()[0].split()[-1] == "NAMESPACE"
        assert {"pool/python", "claim/busy"} <= set(home.works("top", "-o", "name").split())
        found = json.loads(home.works("top", "-o", "json"))
        assert yaml.safe_load(home.works("top", "-o", "yaml")).keys() == found.keys()
        (shown,) = (each for each in found["claims"] if each["name"] == "busy")
        assert shown["cpu"] > 0.05 and shown["memoryBytes"] > 45 << 20 and shown["node"]
        (members,) = (each for each in found["pools"] if each["name"] == "python")
        assert members["claimed"] == 1 and members["memoryBytes"] >= shown["memoryBytes"]
    finally:
        home.works("release", "busy")


def test_screen_of_a_terminal_is_drawn_again_until_ctrl_c(home: Playground) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            home.command("top", "--interval", "200ms"),
            env={**home.environ, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            try:
                first = read_until(ours, b"MEMORY")
                assert first.startswith(b"\x1b[H\x1b[J") and b"shown-later" not in first
                home.works("claim", "shown-later")
                *_, screen = read_until(ours, b"shown-later").split(b"\x1b[H\x1b[J")
                assert b"python" in screen, "each screen is whole"
            finally:
                process.send_signal(signal.SIGINT)
            assert process.wait(WITHIN) == 0
            rest = b""
            with suppress(OSError):  # the other side is closed, and all is read
                while True:
                    rest += os.read(ours, 1 << 16)
            assert b"Traceback" not in rest
    finally:
        os.close(ours)
        home.run("release", "shown-later")
