"""What holds for every command: formats of lists, and mistakes that are told in a sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sandpool.bench.server_process import ServerProcess
from sandpool.cli.main import main
from sandpool.cli.output import FORMATS
from tests.support.command_tree import all_commands

COMMANDS = {" ".join(words): command for words, command in all_commands()}
LISTS = ("ls", "list", "top")
#: Shows one thing or one timeline, so there are no names to print.
DOCUMENTS = ("status", "doctor", "version", "context show", "trace claim", "trace sandbox")


def formats(command: click.Command) -> tuple[str, ...]:
    found = [each.type for each in command.params if "-o" in each.opts]
    return tuple(map(str, found[0].choices)) if found and isinstance(found[0], click.Choice) else ()


def test_whatever_lists_has_all_formats() -> None:
    lists = {name: formats(command) for name, command in COMMANDS.items() if name.split()[-1] in LISTS}
    assert lists == dict.fromkeys(
        ("ls", "pool ls", "template ls", "context ls", "image ls", "top", "e2b key list"), FORMATS
    )
    assert {name: formats(COMMANDS[name]) for name in DOCUMENTS} == dict.fromkeys(DOCUMENTS, ("table", "json", "yaml"))


#: Values that are wrong almost everywhere. The last one is an argument that is not UTF-8.
WRONG = ("", " ", "..", "a b", "nope", "x" * 300, "claim/", "a:b:c", "\x1b[31m", "-1", "9" * 30, "nan", "caf\udce9")
#: Commands that serve until a signal. Only a configuration that cannot be read keeps them from it.
SERVING = {"apiserver", "controller", "node", "router", "e2b serve", "mcp", "dashboard"}
#: Commands that need no API to begin, and the options that end them.
GUARDS = {
    "bench claims": ("--kubeconfig", "garbage"),
    "up": ("--data-dir", "/dev/null/none"),
    "server": ("--data-dir", "/dev/null/none"),
    "image build": ("--file", "/dev/null/none"),
}
#: Takes seconds or has no value to be wrong.
SKIPPED = {"demo", "doctor"}


class Place:
    """A user with an API that is gone and a kubeconfig that is none, in a directory with things to name."""

    def __init__(self, directory: Path) -> None:
        self.here = directory / "user" / "here"
        self.here.mkdir(parents=True)
        self.garbage = self.here / "garbage"
        self.garbage.write_bytes(b"\x00\xff[not: anything")
        self.gone = self.here / "gone"
        cluster = {"server": "http://127.0.0.1:1"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gone", "cluster": cluster}],
            "users": [{"name": "gone", "user": {}}],
            "contexts": [{"name": "gone", "context": {"cluster": "gone", "user": "gone"}}],
            "current-context": "gone",
        }
        self.gone.write_text(json.dumps(document))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.chdir(place.here)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no program of an image tool reaches a registry
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "SUDO_UID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return place


def arguments(name: str, command: click.Command, place: Place) -> Iterator[list[str]]:
    """Command lines with one mistake each."""
    needed = {each: [fitting(each, place)] for each in command.params if each.required}
    guard = list(GUARDS.get(name, ()))

    def line(**changed: list[str]) -> list[str]:
        words = []
        for each in command.params:
            values = changed.get(each.name or "", needed.get(each, []))
            if isinstance(each, click.Option):
                words += [text for value in values for text in (each.opts[0], value)]
        positional = [
            value
            for each in command.params
            if isinstance(each, click.Argument)
            for value in changed.get(each.name or "", needed.get(each, []))
        ]
        return [*words, *guard, *(["--", *positional] if positional else [])]

    yield ["--no-such-option"]
    yield line()
    yield [*line(), *(["--"] if "--" not in line() else []), "one", "too", "many", "words"]
    for each in needed:
        yield line(**{each.name or "": []})
    for each in command.params:
        if isinstance(each, click.Option) and (each.is_flag or each.opts[0] in guard):
            continue
        for value in (*WRONG, str(place.here), str(place.garbage), str(place.here / "missing")):
            yield line(**{each.name or "": [value]})


def fitting(parameter: click.Parameter, place: Place) -> str:
    if isinstance(parameter.type, click.Choice):
        return str(parameter.type.choices[0])
    if isinstance(parameter.type, click.IntRange | click.types.IntParamType):
        return "1"
    return str(place.garbage) if isinstance(parameter.type, click.Path) else "thing"


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - SKIPPED))
def test_no_mistake_on_the_command_line_shows_a_traceback(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(place.garbage if name in SERVING else place.gone))
    wrong = []
    for words in arguments(name, COMMANDS[name], place):
        result = CliRunner().invoke(main, [*name.split(), *words])
        ended = result.exception is None or isinstance(result.exception, SystemExit)
        told = result.exit_code == 0 or "Error: " in result.output or "Usage: " in result.output
        if not ended or not told or "Traceback" in result.output:
            wrong.append((words, result.exit_code, result.exception, result.output))
    assert wrong == []


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """A home with a pool and a claim on a simulated node, and a directory for files."""
    directory = tmp_path_factory.mktemp("up")
    (directory / "audit").touch()
    options = ("--simulated-nodes", "1", "--audit-log", str(directory / "audit"))
    with ServerProcess("up", options=options, user_home=directory) as server:
        where = ("--kubeconfig", str(server.kubeconfig))
        for words in (
            ("template", "create", "python", "--image", "none"),
            ("pool", "create", "python", "--size", "1", "--wait", "60s"),
            ("claim", "mine"),
            ("e2b", "key", "create", "mine"),
        ):
            done = sandpool(*words, *where)
            assert done.returncode == 0, done.stderr
        (directory / "tree").mkdir()
        assert (
            sandpool("image", "import", str(directory / "tree"), "mine", "--data-dir", str(directory)).returncode == 0
        )
        yield server, directory


def sandpool(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60}
    return subprocess.run([sys.executable, "-m", "sandpool.cli.entry", *words], check=False, **given | options)


#: Everything that can print more than a line, with what it needs. PLACE is a directory.
PRINTING = [
    "ls -A -o yaml",
    "ls -a",
    "ls -o json",
    "ls -o name",
    "pool ls -o yaml",
    "pool ls -o wide",
    "pool rollout python",
    "template ls -o yaml",
    "template show python",
    "context ls -o yaml",
    "context show",
    "image ls -o yaml --data-dir PLACE",
    "image show mine --data-dir PLACE",
    "e2b key list -o yaml",
    "top --once",
    "top -o yaml",
    "status",
    "status -o yaml",
    "why mine",
    "why pool python",
    "trace claim mine --audit-log PLACE/audit",
    "trace claim mine --audit-log PLACE/audit -o yaml",
    "version -o yaml",
    "completion bash",
    "run --help",
]


def test_everything_that_lists_is_among_what_is_piped_into_head() -> None:
    assert {name for name in COMMANDS if name.split()[-1] in LISTS} <= {
        name for line in PRINTING for name in COMMANDS if line.startswith(name)
    }


@pytest.mark.parametrize("line", PRINTING)
def test_output_that_nobody_reads_is_no_error(line: str, up: tuple[ServerProcess, Path]) -> None:
    """As in ``sandpool ls | head``, when ``head`` is gone before anything is written."""
    server, directory = up
    words = line.replace("PLACE", str(directory)).split()
    environ = {**os.environ, "KUBECONFIG": str(server.kubeconfig), "HOME": str(directory)}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = sandpool(*words, stdout=writing, env=environ)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", ["ls -a", "pool ls", "image ls --data-dir PLACE", "context ls"])
def test_colours_are_for_terminals_alone(line: str, up: tuple[ServerProcess, Path]) -> None:
    server, directory = up
    words = line.replace("PLACE", str(directory)).split()
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    environ = {**kept, "KUBECONFIG": str(server.kubeconfig), "HOME": str(directory)}
    piped = sandpool(*words, env=environ)
    assert (piped.returncode, "\x1b" in piped.stdout) == (0, False)
    reading, writing = os.openpty()
    try:
        sandpool(*words, stdout=writing, env=environ)
        shown = os.read(reading, 10_000).decode()
    finally:
        os.close(writing)
        os.close(reading)
    assert re.match(r"\x1b\[1m *NAME", shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_few_options_first_and_the_others_under_headings(name: str) -> None:
    text = CliRunner().invoke(main, [*name.split(), "--help"]).output
    first = re.split(r"^Options:\n", text, flags=re.MULTILINE)[-1].partition("\n\n")[0]
    assert len(re.findall(r"^  -", first, re.MULTILINE)) <= 12
    assert not re.findall(r"^  [^ -].*", first, re.MULTILINE), "arguments are in the first line, and are no options"
