"""The commands of the README, typed as they are there, print what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.playground import Playground, playground

pytestmark = pytest.mark.isolation

PROJECT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_END = "-- end of a command --"
_ANYTHING = "..."


def blocks() -> list[list[tuple[str, list[str]]]]:
    """The console blocks as commands with the lines that they print."""
    found = []
    for text in _BLOCK.findall((PROJECT / "README.md").read_text()):
        commands: list[tuple[str, list[str]]] = []
        for line in text.splitlines():
            if line.startswith("$ "):
                commands.append((line.removeprefix("$ "), []))
            else:
                commands[-1][1].append(line)
        found.append(commands)
    return found


def starting_with(first: str) -> list[tuple[str, list[str]]]:
    (block,) = (each for each in blocks() if each[0][0].startswith(first))
    return block


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    with playground(tmp_path_factory.mktemp("readme")) as running:
        # A namespace in which nothing has been made yet, as for a new user.
        config = yaml.safe_load(running.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = "readme"
        own = running.directory / "kubeconfig"
        own.write_text(yaml.safe_dump(config))
        (running.directory / "src").symlink_to(PROJECT / "src")
        (running.directory / "data.csv").write_text("a,b\n")
        programs = running.directory / "bin"
        programs.mkdir()
        (programs / "sandpool").write_text(f'#!/bin/sh\nexec {sys.executable} -m sandpool.cli.entry "$@"\n')
        (programs / "sandpool").chmod(0o755)
        running.environ |= {"KUBECONFIG": str(own), "PATH": f"{programs}:{running.environ['PATH']}"}
        create = ["kubectl", "create", "namespace", "readme"]
        subprocess.run(create, env=running.environ, check=True, capture_output=True, timeout=60)
        yield running


def typed(home: Playground, *commands: str) -> list[list[str]]:
    """Type commands into one shell, and return the lines that each shows in a terminal."""
    script = "\n".join(f"{command}\necho; echo '{_END}'" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        env=home.environ,
        cwd=home.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    parts = done.stdout.split(f"\n{_END}\n")
    assert len(parts) == len(commands) + 1, done.stdout
    return [part.splitlines() for part in parts[:-1]]


def normal(line: str) -> str:
    """A line without what differs each time: ages, random names, and the width of columns."""
    line = re.sub(r"\bpython-[a-z0-9]{5}\b", "python-xxxxx", line)
    line = re.sub(r"\b\d+m?\d*s\b", "3s", line)
    return re.sub(r" {2,}", "  ", line).strip()


def assert_shown(shown: list[str], expected: list[str], command: str) -> None:
    pattern = "\n".join(".*" if line == _ANYTHING else re.escape(normal(line)) for line in expected)
    text = "\n".join(map(normal, shown))
    assert re.fullmatch(pattern, text, re.DOTALL), f"$ {command}\n{text}\ninstead of\n{pattern}"


def assert_prints(home: Playground, block: list[tuple[str, list[str]]]) -> None:
    results = typed(home, *(command for command, _ in block))
    for (command, expected), shown in zip(block, results, strict=True):
        assert_shown(shown, expected, command)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
class TestReadme:
    def test_first_run_makes_a_pool_and_prints_42(self, home: Playground) -> None:
        ((command, expected),) = starting_with("sandpool run")
        assert expected[0].startswith("starting the local home in the background")
        # This home runs already, so only what follows is said.
        assert_prints(home, [(command, expected[expected.index(_ANYTHING) + 1 :])])
        assert_prints(home, [(command, ["42"])])

    def test_claim_is_used_and_released(self, home: Playground) -> None:
        assert_prints(home, starting_with("sandpool claim"))

    def test_same_with_kubectl(self, home: Playground) -> None:
        block = starting_with("export KUBECONFIG")
        # A person types slower than this test, so it waits where a person would have.
        wait = "kubectl wait --timeout=60s --for=condition=Ready sandboxclaim/my-claim >/dev/null"
        name = "$(kubectl get sandboxclaim my-claim -o jsonpath={.status.sandbox.name})"
        commands = [re.sub(r"\bpython-[a-z0-9]{5}\b", name, command) for command, _ in block]
        at = next(index for index, command in enumerate(commands) if command.startswith("kubectl get"))
        commands[at] = f"{wait}; {commands[at]}"
        for (command, expected), shown in zip(block, typed(home, *commands), strict=True):
            assert_shown(shown, expected, command)
