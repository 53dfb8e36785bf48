"""The page of the public Python API has every public name."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import sandpool
import sandpool.testing

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference.md"
SDK: Final = Path(sandpool.__file__).parent / "sdk"

#: Classes of the client that no public method returns, takes or raises.
INTERNAL: Final = {
    "sandpool.sdk.blocking.LoopThread",
    "sandpool.sdk.claim_watch.ClaimWatch",
    "sandpool.sdk.lease.Leases",
    "sandpool.sdk.process.AsyncProcesses",
    "sandpool.sdk.router_access.RouterAccess",
    "sandpool.sdk.sandbox.Use",
    "sandpool.sdk.task_map.TaskMap",
}


def documented() -> list[str]:
    """The names on the page, in their order."""
    return re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE)


def resolve(name: str) -> object:
    """The module or the member of a module with this name."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, member = name.rpartition(".")
        return getattr(import_module(module), member)


def test_names_on_the_page_exist_once() -> None:
    names = documented()
    assert names and len(names) == len(set(names))
    for name in names:
        resolve(name)


@pytest.mark.parametrize("package", [sandpool, sandpool.testing])
def test_every_exported_name_is_on_the_page(package: object) -> None:
    found = {id(resolve(name)) for name in documented()}
    exported = [name for name in package.__all__ if not name.startswith("_")]  # type: ignore[attr-defined]
    assert exported
    assert [name for name in exported if id(getattr(package, name)) not in found] == []


def test_every_class_of_the_client_is_on_the_page_or_internal() -> None:
    classes = {
        f"sandpool.sdk.{path.stem}.{node.name}"
        for path in SDK.glob("*.py")
        if not path.stem.endswith("_driver")  # programs that run in the sandbox
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    assert classes - INTERNAL == classes & set(documented())
    assert classes >= INTERNAL, "a class is gone"
