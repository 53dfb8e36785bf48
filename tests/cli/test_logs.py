"""``sandpool logs NAME``: the log of a sandbox."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.playground import WITHIN, Playground

pytestmark = pytest.mark.isolation
_SCRIPT = "echo one; echo two; while :; do if [ -e /tmp/more ]; then cat /tmp/more; rm /tmp/more; fi; sleep 0.05; done"


@pytest.fixture(scope="module")
def box(home: Playground) -> Iterator[str]:
    """A sandbox whose main process prints two lines, and later what it finds in a file."""
    home.works("template", "create", "printer", "--image", "sandpool.local/python", "--", "sh", "-c", _SCRIPT)
    home.works("pool", "create", "printer", "--size", "1", "--wait", "30s")
    yield home.works("claim", "--pool", "printer", "printing").strip()
    home.works("release", "printing")
    home.works("pool", "rm", "printer")
    home.works("template", "rm", "printer")


def test_the_log_of_a_sandbox_and_what_comes_later(home: Playground, box: str) -> None:
    assert home.works("logs", box) == "one\ntwo\n"
    assert home.works("logs", box, "--tail", "1") == "two\n"
    assert home.works("logs", box, "--timestamps").splitlines()[0].endswith("Z one")
    command = home.command("logs", "-f", box)
    with subprocess.Popen(command, env=home.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        home.works("exec", box, "--", "sh", "-c", "echo three > /tmp/new; mv /tmp/new /tmp/more")
        assert process.stdout.readline() == b"three\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 0
        assert process.stderr.read() == b""


def test_log_piped_into_head_ends_without_an_error(home: Playground, box: str) -> None:
    """Of a log that is larger than a pipe."""
    name = home.works("claim", "--pool", "printer").strip()
    try:
        home.works("exec", name, "--", "sh", "-c", "seq 200000 > /tmp/new; mv /tmp/new /tmp/more")
        assert home.piped_into_head(4, "logs", "-f", name) == "one\ntwo\n1\n2\n"
        assert home.piped_into_head(1, "logs", name) == "one\n"
    finally:
        home.works("release", name)


def test_mistakes_are_one_line_with_advice(home: Playground, box: str) -> None:
    assert f"Did you mean {box}?" in home.fails("logs", f"{box}x")
    assert "container" in home.fails("logs", box, "-c", "nope")
