from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from sandpool.sandboxd.companion import Companion
import signal, time
companion = Companion(sys.argv[2:], sys.argv[1] == "--run")
signal.signal(signal.SIGTERM, lambda number, frame: companion.signal(number) or sys.exit(9))
os.write(1, b"serving\\n")  # one write: the command writes to the same pipe
while True:
    signal.pause()
"""


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("script", ["exit 3", "kill -KILL $$"])
def test_the_server_ends_with_its_command(script: str) -> None:
    process = start("--run", "sh", "-c", script)
    assert process.wait(30) == (3 if script == "exit 3" else 128 + signal.SIGKILL)
    process.communicate()


def test_a_command_that_ends_well_leaves_the_server_and_one_that_fails_does_not() -> None:
    failing = start("--beside", "sh", "-c", "exit 4")
    assert failing.wait(30) == 4
    failing.communicate()
    ending = start("--beside", "true")
    assert ending.stdout is not None and ending.stdout.readline() == "serving\n"
    while children(ending.pid):
        pass
    assert ending.poll() is None
    ending.send_signal(signal.SIGTERM)
    assert ending.wait(30) == 9, "no command is left to pass the signal to"
    ending.communicate()


def children(pid: int) -> str:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read()


def test_a_signal_reaches_the_command() -> None:
    process = start("--run", "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    assert process.stdout is not None
    # In any order; before it serves, it is not ready for a signal.
    assert {process.stdout.readline(), process.stdout.readline()} == {"ready\n", "serving\n"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 5
    process.communicate()


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    missing = f"{tmp_path}/missing"
    process = start("--run", missing)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 127 and errors == f"exec: {missing}: {os.strerror(2)}\n"
