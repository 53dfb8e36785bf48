"""The commands of the README, typed as they are there, print what is there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from tests.support.playground import Playground, playground
from tests.support.typed_commands import PROJECT, Block, blocks, in_new_namespace, typed, typing_user

pytestmark = pytest.mark.isolation

_ANYTHING = "..."


def commands_of(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a console block with the lines that they print."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append((line.removeprefix("$ "), []))
        else:
            commands[-1][1].append(line)
    return commands


def starting_with(first: str) -> list[tuple[str, list[str]]]:
    console = (commands_of(each) for each in blocks("README.md") if each.language == "console")
    (block,) = (each for each in console if each[0][0].startswith(first))
    return block


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    with playground(tmp_path_factory.mktemp("readme")) as running:
        typing_user(running)
        in_new_namespace(running, "readme")
        (running.directory / "src").symlink_to(PROJECT / "src")
        (running.directory / "data.csv").write_text("a,b\n")
        yield running


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
        assert_shown(shown.lines, expected, command)


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
            assert_shown(shown.lines, expected, command)
