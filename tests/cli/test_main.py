"""``sandpool`` itself: quick to answer, and importing nothing it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from sandpool import __version__
from sandpool.cli.main import main


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"sandpool, version {__version__}\n")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_commands(option: str) -> None:
    result = CliRunner().invoke(main, [option])
    assert result.exit_code == 0
    assert "server" in result.output


def test_an_unknown_command() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command" in result.output


def test_help_imports_no_server() -> None:
    code = (
        "import sys; from sandpool.cli.main import main; main(['--help'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith(('sandpool.server', 'aiohttp', 'cryptography'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_server_imports_no_client() -> None:
    """It starts in a second, of which that would take a third."""
    code = (
        "import sys, sandpool.cli.server; "
        "print([name for name in sys.modules if name.startswith(('aiohttp', 'sandpool.controllers'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
