"""Commands of the documentation, typed into a shell as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support.playground import Playground

PROJECT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_END = "-- end of a command --"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str  # empty for commands without their output
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What a command prints in a terminal, and its exit code."""

    lines: list[str]
    code: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page of the project, in order."""
    return [Block(*found) for found in _BLOCK.findall((PROJECT / page).read_text())]


def typing_user(home: Playground) -> None:
    """Let the user of a home type ``sandpool``, which finds the home as on a user's machine."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "SUDO_UID"):
        home.environ.pop(name, None)
    programs = home.directory / "bin"
    programs.mkdir()
    (programs / "sandpool").write_text(f'#!/bin/sh\nexec {sys.executable} -m sandpool.cli.entry "$@"\n')
    (programs / "sandpool").chmod(0o755)
    home.environ["PATH"] = f"{programs}:{home.environ['PATH']}"


def in_new_namespace(home: Playground, namespace: str) -> None:
    """Let the user of a home work in a namespace in which nothing has been made yet."""
    config = yaml.safe_load(home.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    own = home.directory / "kubeconfig"
    own.write_text(yaml.safe_dump(config))
    home.environ["KUBECONFIG"] = str(own)
    create = ["kubectl", "create", "namespace", namespace]
    subprocess.run(create, env=home.environ, check=True, capture_output=True, timeout=60)


def typed(home: Playground, *commands: str) -> list[Shown]:
    """Type commands into one shell."""
    script = "\n".join(f"{command}\nprintf '\\n%s %d\\n' '{_END}' $?" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        env=home.environ,
        cwd=home.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    parts = re.split(rf"\n{_END} (\d+)\n", done.stdout)
    assert len(parts) == 2 * len(commands) + 1, done.stdout
    return [Shown(lines.splitlines(), int(code)) for lines, code in zip(parts[::2], parts[1::2], strict=False)]


def succeed(home: Playground, block: Block) -> list[list[str]]:
    """Type the commands of a block, which all have to succeed, and return the lines that each prints."""
    commands = block.text.splitlines()
    results = typed(home, *commands)
    for command, shown in zip(commands, results, strict=True):
        assert shown.code == 0, f"$ {command}\n" + "\n".join(shown.lines)
    return [shown.lines for shown in results]
