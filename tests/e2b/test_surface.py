"""The table of calls in docs/e2b.md and the published packages: every public call is in one row."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.e2b_endpoint import find_python

PAGE: Final = Path(__file__).parents[2] / "docs" / "e2b.md"
STATES: Final = {"works", "differs", "missing"}
#: Public names without a row: the HTTP client of the package, and the configuration of one for volumes.
INTERNAL: Final = ("ApiClient", "VolumeConnectionConfig")
BLOCKING, ASYNCHRONOUS = "blocking", "asynchronous"
#: Prints the public calls of all that both packages export, and of what the properties of a sandbox return, in each
#: form. Exceptions, types, constants and classes of data are left out: they have no calls of the service.
_SURFACE: Final = """
import dataclasses, enum, inspect, json, sys, typing
import e2b, e2b_code_interpreter as interpreter

def exported(package):
    return getattr(package, "__all__", None) or [name for name in dir(package) if not name.startswith("_")]

def is_data(found):
    if not inspect.isclass(found):
        return not inspect.isfunction(found)  # a constant, a module or the alias of a type
    values = (BaseException, enum.Enum, str, bytes)
    return issubclass(found, values) or typing.is_typeddict(found) or dataclasses.is_dataclass(found)

def calls(owner):
    if owner.__name__ == "E2B":
        owner = owner(api_key="e2b_" + "0" * 40)  # it has its calls when it is made
    return {name for name in dir(owner) if not name.startswith("_")}

surface = {"functions": {"blocking": []}}

def add(name, form, found):
    surface.setdefault(name, {})[form] = sorted(found)

parts = {}
for form, sandbox in (("blocking", e2b.Sandbox), ("asynchronous", e2b.AsyncSandbox)):
    for name, part in inspect.getmembers(sandbox, lambda member: isinstance(member, property)):
        returned = typing.get_type_hints(part.fget).get("return")
        if inspect.isclass(returned) and returned.__module__.startswith("e2b.") and not is_data(returned):
            parts[returned] = name
            add("Sandbox." + name, form, calls(returned))

for package, prefix in ((e2b, ""), (interpreter, "code_interpreter.")):
    for name in exported(package):
        found = getattr(package, name)
        base = getattr(e2b, name, None) if prefix else None
        if found is base or is_data(found) or found in parts or name in sys.argv[1:]:
            continue
        if inspect.isfunction(found):
            surface["functions"]["blocking"].append(name)
        elif added := calls(found) - (calls(base) if base else set()):
            plain = name.removeprefix("Async")
            add(prefix + plain, "blocking" if name == plain else "asynchronous", added)
print(json.dumps(surface))
"""


class Row(NamedTuple):
    name: str
    calls: list[str]
    state: str
    note: str


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[2] in STATES:
            found.append(Row(cells[0].strip("`"), re.findall(r"`(\w+)`", cells[1]), cells[2], cells[3]))
    return found


def test_every_public_call_is_in_one_row() -> None:
    python = find_python()
    if python is None:
        pytest.skip("the packages of E2B are not installed: run dev/e2b")
    printed = subprocess.run([python, "-c", _SURFACE, *INTERNAL], capture_output=True, text=True, check=True).stdout
    surface: dict[str, dict[str, list[str]]] = json.loads(printed)
    table = rows()
    assert {row.name for row in table} == set(surface)
    for name, forms in surface.items():
        own = [row for row in table if row.name == name]
        if not own[0].calls:
            assert [row.state for row in own] == ["missing"], f"{name} is missing as a whole"
            continue
        listed = Counter(call for row in own for call in row.calls)
        assert listed == Counter(set(itertools.chain.from_iterable(forms.values()))), name
        for row in own:
            for call in row.calls:
                having = [form for form, calls in forms.items() if call in calls]
                alone = having[0] if len(having) == 1 and (len(forms) == 2 or ASYNCHRONOUS in forms) else None
                for form in (BLOCKING, ASYNCHRONOUS):
                    assert (f"{form} only" in row.note) is (form == alone), f"{name}.{call}"


def test_tested_versions_are_those_that_are_installed() -> None:
    installer = (PAGE.parents[1] / "dev" / "e2b").read_text()
    for package, variable in (("e2b", "VERSION"), ("e2b-code-interpreter", "CODE_INTERPRETER_VERSION")):
        (version,) = re.findall(rf"^{variable}=(.+)$", installer, re.MULTILINE)
        assert f"`{package}` {version}" in PAGE.read_text()
