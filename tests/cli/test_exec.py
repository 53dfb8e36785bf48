"""``sandpool exec`` and ``shell`` as a user does it."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.playground import WITHIN, Playground, read_until

pytestmark = pytest.mark.isolation


@pytest.fixture(scope="module")
def box(home: Playground) -> Iterator[str]:
    name = home.works("claim").strip()
    yield name
    home.works("release", name)


def test_exec_runs_in_the_same_sandbox(home: Playground, box: str) -> None:
    home.works("exec", box, "--", "sh", "-c", "echo kept > /tmp/file")
    assert home.works("exec", box, "cat", "/tmp/file") == "kept\n"
    assert home.works("exec", f"claim/{box}", "-e", "A=1", "--", "sh", "-c", "echo $A") == "1\n"
    assert home.works("exec", "-e", "A=1", box, "sh", "-c", "echo $A -- x") == "1 -- x\n"
    assert home.run("exec", box, "--", "sh", "-c", "exit 9").returncode == 9


def test_exec_pipes_standard_input(home: Playground, box: str) -> None:
    assert home.works("exec", box, "--", "python3", "-", stdin=b"print(6*7)") == "42\n"


def test_output_piped_into_head_ends_without_an_error(home: Playground, box: str) -> None:
    assert home.piped_into_head(2, "exec", box, "--", "yes") == "y\ny\n"


def test_shell_without_a_terminal_runs_a_script(home: Playground, box: str) -> None:
    result = home.run("shell", box, stdin=b"x=6\necho $((x*7))\nexit 3\n")
    assert (result.returncode, result.stdout) == (3, b"42\n")


def test_shell_in_a_terminal_has_its_size(home: Playground, box: str) -> None:
    ours, theirs = pty.openpty()
    command = ["stty", "cols", "93", "rows", "31"]
    subprocess.run(command, stdin=theirs, check=True)
    environ = {**home.environ, "TERM": "xterm"}
    with subprocess.Popen(
        home.command("shell", box), env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        os.write(ours, b"stty size; echo done-$((1+1)); exit 4\r")
        seen = read_until(ours, b"done-2")
        assert process.wait(WITHIN) == 4
    os.close(ours)
    assert b"31 93" in seen


def test_interpreter_without_input_says_how_to_get_some(home: Playground) -> None:
    home.works("claim", "typed")
    try:
        result = home.run("exec", "typed", "--", "/bin/sh")
        assert result.stderr == b"/bin/sh had no input and ended. To type commands into it use: -it /bin/sh\n"
        assert home.run("exec", "typed", "--", "sh", stdin=b"true").stderr == b""
        assert home.run("exec", "typed", "--", "sh", "-c", "true").stderr == b""
    finally:
        home.works("release", "typed")


def test_mistakes_are_one_line_with_advice(home: Playground, box: str) -> None:
    said = home.fails("exec", box[:-1] + "?", "--", "true")
    assert f"Did you mean {box}?" in said
    assert "give a command" in home.fails("exec", box, "--", code=2)
    assert "name a claim and a command" in home.fails("exec", code=2)
    assert "is not a name" in home.fails("exec", "", "--", "true")
