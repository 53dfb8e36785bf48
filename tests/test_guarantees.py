"""docs/guarantees.md, docs/compatibility.md and docs/security.md name tests; each of them must exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def named_on(page: str) -> list[tuple[str, str]]:
    return sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+\*?)`", (ROOT / "docs" / page).read_text())))


GUARANTEES = named_on("guarantees.md")
COMPATIBILITY = named_on("compatibility.md")
THREATS = named_on("security.md")


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))


def exists(path: str, name: str) -> bool:
    found = names_in(path)
    return any(test.startswith(name[:-1]) for test in found) if name.endswith("*") else name in found


@pytest.mark.parametrize(("path", "name"), GUARANTEES)
def test_every_guarantee_names_an_existing_test(path: str, name: str) -> None:
    assert exists(path, name)


@pytest.mark.parametrize(("path", "name"), THREATS)
def test_every_threat_names_an_existing_test(path: str, name: str) -> None:
    assert exists(path, name)


@pytest.mark.parametrize(("path", "name"), COMPATIBILITY)
def test_every_compatible_behaviour_names_an_existing_test(path: str, name: str) -> None:
    assert exists(path, name)


def test_guarantees_page_is_not_empty() -> None:
    assert len(GUARANTEES) > 80


def guarantee_rows() -> dict[str, list[list[str]]]:
    """The rows below each heading of docs/guarantees.md: what is promised, and the tests."""
    sections = re.split(r"^## ", (ROOT / "docs/guarantees.md").read_text(), flags=re.MULTILINE)[1:]
    found: dict[str, list[list[str]]] = {}
    for section in sections:
        title, _, body = section.partition("\n")
        _, _, table = body.partition("|---|---|\n")
        rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
        found[title] = [[row[0].strip(), row[-1].strip()] for row in rows]
    return found


def test_every_guarantee_names_a_test() -> None:
    sections = guarantee_rows()
    assert len(sections["Everyday use"]) >= 20
    for title, rows in sections.items():
        for promise, tests in rows:
            assert "`tests/" in tests, f"{title}: {promise}"


def compatibility_rows() -> list[list[str]]:
    """Cells of all rows of docs/compatibility.md that have a verdict: behaviour, verdict, reason, tests."""
    lines = (ROOT / "docs" / "compatibility.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row[-4:] for row in rows if len(row) >= 4 and row[-3] in ("same", "better", "different")]


def test_every_row_of_the_compatibility_page_is_complete() -> None:
    """A difference has a reason, and a row without a test says so."""
    rows = compatibility_rows()
    assert len(rows) > 150
    for behaviour, verdict, reason, tests in rows:
        assert verdict == "same" or reason, behaviour
        assert "`tests/" in tests or tests == "no test", behaviour


def test_compatibility_page_counts_its_rows() -> None:
    page = " ".join((ROOT / "docs" / "compatibility.md").read_text().split())
    said = re.search(r"Of (\d+) behaviours (\d+) are the same, (\d+) better and (\d+) different", page)
    assert said is not None
    verdicts = Counter(verdict for _, verdict, _, _ in compatibility_rows())
    expected = (verdicts.total(), verdicts["same"], verdicts["better"], verdicts["different"])
    assert tuple(map(int, said.groups())) == expected
