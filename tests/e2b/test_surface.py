"""The table of calls in docs/e2b.md and the published packages: every public call is in one row."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.e2b_endpoint import find_python

PAGE: Final = Path(__file__).parents[2] / "docs" / "e2b.md"
STATES: Final = {"works", "differs", "missing"}
#: Prints the public calls of each class, in both of its forms.
_SURFACE: Final = """
import json, e2b, e2b_code_interpreter as interpreter
from e2b.sandbox_async import main as a
from e2b.sandbox_sync import main as s

def calls(*classes):
    return [sorted(name for name in dir(each) if not name.startswith("_")) for each in classes]

boxes = calls(e2b.Sandbox, e2b.AsyncSandbox)
print(json.dumps({
    "Sandbox": boxes,
    "Sandbox.commands": calls(s.Commands, a.Commands),
    "Sandbox.pty": calls(s.Pty, a.Pty),
    "Sandbox.files": calls(s.Filesystem, a.Filesystem),
    "Sandbox.git": calls(s.Git, a.Git),
    "CommandHandle": calls(e2b.CommandHandle),
    "WatchHandle": calls(e2b.WatchHandle),
    "code_interpreter.Sandbox": [
        sorted(set(each) - set(base))
        for each, base in zip(calls(interpreter.Sandbox, interpreter.AsyncSandbox), boxes)
    ],
    "Template": calls(e2b.Template, e2b.AsyncTemplate),
    "Volume": calls(e2b.Volume, e2b.AsyncVolume),
    "Secret": calls(e2b.Secret, e2b.AsyncSecret),
}))
"""


def rows() -> list[tuple[str, list[str], str]]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[2] in STATES:
            found.append((cells[0].strip("`"), re.findall(r"`(\w+)`", cells[1]), cells[2]))
    return found


def test_every_public_call_is_in_one_row() -> None:
    python = find_python()
    if python is None:
        pytest.skip("the packages of E2B are not installed: run dev/e2b")
    printed = subprocess.run([python, "-c", _SURFACE], capture_output=True, text=True, check=True).stdout
    surface: dict[str, list[list[str]]] = json.loads(printed)
    table = rows()
    assert {name for name, _, _ in table} == set(surface)
    for name, forms in surface.items():
        listed = Counter(call for row, calls, _ in table if row == name for call in calls)
        if [state for row, calls, state in table if row == name and not calls] == ["missing"]:
            assert not listed, f"{name} is missing as a whole"
            continue
        for calls in forms:
            assert listed == Counter(calls), name


def test_tested_versions_are_those_that_are_installed() -> None:
    installer = (PAGE.parents[1] / "dev" / "e2b").read_text()
    for package, variable in (("e2b", "VERSION"), ("e2b-code-interpreter", "CODE_INTERPRETER_VERSION")):
        (version,) = re.findall(rf"^{variable}=(.+)$", installer, re.MULTILINE)
        assert f"`{package}` {version}" in PAGE.read_text()
