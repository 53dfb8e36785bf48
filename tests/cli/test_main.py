"""``sandpool`` itself: quick to answer, and importing nothing it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandpool import __version__
from sandpool.cli.errors import explain
from sandpool.cli.main import COMMANDS, GROUPS, main
from sandpool.kube.errors import NotFound, Unauthorized


def test_version_is_printed() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"sandpool, version {__version__}\n")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_commands(option: str) -> None:
    result = CliRunner().invoke(main, [option])
    assert result.exit_code == 0
    assert "server" in result.output


def test_unknown_command_is_reported() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "there is no command 'nonsense'." in result.output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["rnu"], "run"), (["rm"], "release"), (["images"], "image ls"), (["pool", "crate"], "create"), (["pss"], "ps")],
)
def test_unknown_command_names_the_command_that_is_meant(typed: list[str], meant: str) -> None:
    result = CliRunner().invoke(main, typed)
    assert result.exit_code == 2
    assert "Did you mean" in result.output
    assert meant in result.output


def test_help_imports_no_server() -> None:
    code = (
        "import sys; from sandpool.cli.main import main; main(['--help'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith(('sandpool.server', 'aiohttp', 'cryptography'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_server_imports_no_client() -> None:
    """It starts in a second, of which that would take a third."""
    code = (
        "import sys, sandpool.cli.server; "
        "print([name for name in sys.modules if name.startswith(('aiohttp', 'sandpool.controllers'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_help_shows_every_command_in_its_group() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for title, group in GROUPS.items():
        section = output.partition(f"{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines() if line.startswith("  ") and line[2] != " "] == list(
            group
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported_and_has_help(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["up", "--help"], ["token", "--all", "--secret-file", __file__]], ids=" ".join
)
def test_a_closed_pipe_is_no_error(arguments: list[str]) -> None:
    """As in ``sandpool up --help | head``: the reader is gone before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "sandpool.cli.main", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failure_of_the_api_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("[]")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    result = CliRunner().invoke(main, ["why", "claim", "mine"])
    assert (result.exit_code, result.output) == (1, f"Error: {kubeconfig} is not a kubeconfig\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotFound("nothing of that name"), "the API refused: nothing of that name"),
        (Unauthorized("Unauthorized"), "the API rejected the credentials: Unauthorized"),
        (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (ExceptionGroup("tasks", [NotFound("nothing of that name")]), "the API refused: nothing of that name"),
        (TimeoutError(), "no answer in time; is the home or the cluster running? See `sandpool status`"),
    ],
)
def test_expected_failures_have_a_message(error: Exception, message: str) -> None:
    assert explain(error) == message


def test_a_defect_keeps_its_traceback() -> None:
    assert explain(KeyError("x")) is None
    assert explain(ExceptionGroup("tasks", [NotFound("x"), KeyError("y")])) is None


#: What is imported before the first word to the user, beside click and what click imports.
_FIRST = {
    "sandpool",
    "sandpool.api",
    "sandpool.api.printable",
    "sandpool.cli",
    "sandpool.cli.main",
    "sandpool.home",
    "sandpool.home.locations",
}
#: Each takes as long to import as all of these together.
_SLOW = {"aiohttp", "asyncio", "cryptography", "json", "msgspec", "orjson", "ssl", "subprocess", "uvloop", "yaml"}


def imported_before(word: str, *arguments: str) -> set[str]:
    """The modules that a command imports before it says a word, in the order in which Python reports both."""
    command = [sys.executable, "-X", "importtime", "-m", "sandpool.cli.entry", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    before, found, _ = process.stdout.partition(f"\n{word}")
    assert found, process.stdout
    return {line.rpartition("|")[2].strip() for line in before.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(("word", "argument"), [("Usage: ", "--help"), ("sandpool, version", "--version")])
def test_help_imports_next_to_nothing(word: str, argument: str) -> None:
    """``python -m benchmarks.startup`` prints how long it takes; the target is 150 ms."""
    modules = imported_before(word, argument)
    assert {name for name in modules if name.partition(".")[0] == "sandpool"} == _FIRST
    assert modules & _SLOW == set()
    assert len(modules) < 150


def test_up_says_that_it_is_loading_before_it_imports_the_server() -> None:
    """The first word comes as early as that of ``--help``, with two small modules more."""
    modules = imported_before("loading\n", "up", "--port", "nonsense")
    ours = {name for name in modules if name.partition(".")[0] == "sandpool"}
    assert ours == _FIRST | {"sandpool.cli.progress", "sandpool.cli.streams"}
    assert len(modules) < 170
