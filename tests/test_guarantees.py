"""docs/guarantees.md names tests; they must be there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+\*?)`", (ROOT / "docs/guarantees.md").read_text())))


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_guarantee_is_held_by_a_test(path: str, name: str) -> None:
    found = names_in(path)
    if name.endswith("*"):
        assert any(test.startswith(name[:-1]) for test in found)
    else:
        assert name in found


def test_there_are_guarantees() -> None:
    assert len(NAMED) > 80
