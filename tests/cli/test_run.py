"""``sandpool run`` as a user does it: real processes, pipes, signals and sandboxes."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from sandpool.api.labels import RUN
from sandpool.kube import kubeconfig
from sandpool.service.service import Service
from tests.support.playground import WITHIN, Playground, read_until

pytestmark = pytest.mark.isolation


@pytest.fixture(params=["API", "socket"])
def home(request: pytest.FixtureRequest, home: Playground) -> Playground:
    """A user whose runs go through the API, and one whose runs the home serves at its socket."""
    return home if request.param == "API" else home.over_the_socket()


@pytest.fixture(autouse=True)
def nothing_is_left(home: Playground) -> None:
    """Every run begins without claims, so that a claim that an earlier one left is found."""
    assert home.claims() == []


def test_run_prints_the_output_and_releases_the_sandbox(home: Playground) -> None:
    assert home.works("run", "--", "python3", "-c", "print(6*7)") == "42\n"
    assert home.claims() == []


def test_options_of_the_command_need_no_separator(home: Playground) -> None:
    assert home.works("run", "echo", "-n", "--pool", "x") == "--pool x"


def test_the_exit_code_and_standard_error_are_those_of_the_command(home: Playground) -> None:
    result = home.run("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.returncode, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    assert home.claims() == []


def test_standard_input_is_piped_through(home: Playground) -> None:
    content = os.urandom(300_000)
    assert home.run("run", "--", "cat", stdin=content).stdout == content
    assert home.works("run", "python3", "-", stdin=b"print(6*7)") == "42\n"


def test_environment_directory_and_files(home: Playground) -> None:
    (home.directory / "a file.csv").write_text("a,b\n1,2\n")
    script = "echo $NAME $HOME_TOWN; pwd; cat data/x.csv"
    output = home.works(
        *("run", "-e", "NAME=a b", "-e", "HOME_TOWN", "-w", "/tmp", "-v", "a file.csv:/tmp/data/x.csv"),
        *("--", "sh", "-c", script),
        env={**home.environ, "HOME_TOWN": "here"},
    )
    assert output == "a b here\n/tmp\na,b\n1,2\n"


def test_a_timeout_kills_the_command_and_releases_the_sandbox(home: Playground) -> None:
    result = home.run("run", "--timeout", "300ms", "--", "sh", "-c", "echo begun; sleep 100")
    assert (result.returncode, result.stdout) == (124, b"begun\n")
    assert result.stderr == b"killed after 0.3 s\n"
    assert home.claims() == []


def test_only_the_claim_of_a_running_command_is_marked_for_release_by_the_next_home(home: Playground) -> None:
    assert home.run("run", "--keep", "--name", "unmarked", "--", "true").returncode == 0
    command = home.command("run", "--name", "marked", "--", "sh", "-c", "echo begun; exec sleep 100")
    with subprocess.Popen(command, env=home.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        claims = asyncio.run(_marked(home))
        process.terminate()
    home.works("release", "unmarked")
    assert claims == ["marked"]


async def _marked(home: Playground) -> list[str]:
    async with Service.connect(kubeconfig.load(home.kubeconfig)) as service:
        return [claim.name for claim in await service.claims.list(selector=f"{RUN}=true")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_releases_the_sandbox(home: Playground, number: signal.Signals) -> None:
    command = home.command("run", "--", "sh", "-c", "echo begun; exec sleep 100")
    with subprocess.Popen(command, env=home.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.wait(WITHIN) == 128 + number
    assert home.claims() == []


def test_ctrl_c_in_a_terminal_reaches_the_command(home: Playground) -> None:
    """In a terminal Ctrl-C is a key that the command receives; the command decides what happens."""
    ours, theirs = pty.openpty()
    script = "trap 'echo caught; exit 5' INT; echo begun; while :; do sleep 0.05; done"
    command = home.command("run", "-it", "--", "sh", "-c", script)
    with subprocess.Popen(command, env=home.environ, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = read_until(ours, b"begun")
        os.write(ours, b"\x03")
        seen += read_until(ours, b"caught")
        assert process.wait(WITHIN) == 5
    os.close(ours)
    assert b"Traceback" not in seen
    assert home.claims() == []


def test_output_piped_into_head_ends_without_an_error(home: Playground) -> None:
    assert home.piped_into_head(2, "run", "--", "yes") == "y\ny\n"
    assert home.claims() == []


def test_a_kept_sandbox_stays_until_it_is_released(home: Playground) -> None:
    result = home.run("run", "--keep", "--name", "kept", "--", "sh", "-c", "echo mine > file; pwd")
    assert result.returncode == 0
    assert b"kept claim kept" in result.stderr
    place = result.stdout.decode().strip()
    assert home.works("exec", "kept", "--", "cat", f"{place}/file") == "mine\n"
    assert home.works("release", "kept") == "released kept\n"


def test_mistakes_are_one_line_with_advice(home: Playground, tmp_path: Path) -> None:
    assert "Did you mean python?" in home.fails("run", "--pool", "pyton", "--", "true")
    assert "use --pool or --template, not both" in home.fails("run", "-p", "a", "--template", "b", "true", code=2)
    assert "use LOCAL:REMOTE" in home.fails("run", "-v", "x", "true", code=2)
    assert "there is no file or directory nope" in home.fails("run", "-v", "nope:x", "true", code=2)
    assert "there is no variable NOPE here" in home.fails("run", "-e", "NOPE", "true", code=2)
    assert "is not a duration" in home.fails("run", "--timeout", "soon", "true", code=2)
    assert "-t needs a terminal" in home.fails("run", "-it", "true", code=2)
    assert "no-such-program" in home.fails("run", "no-such-program", code=127)
    assert 'no template "nope"' in home.fails("run", "--template", "nope", "true")
    assert home.claims() == []
