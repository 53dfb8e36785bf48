"""Layers import downwards only."""

from __future__ import annotations

import ast
from pathlib import Path

import sandpool

# From top to bottom. A package may import itself and those further down.
LAYERS = (
    "cli",
    "testing",
    "bench",
    "e2b",
    "dashboard",
    "mcp",
    "sdk",
    "explain",
    "install",
    "router",
    "process",
    "node",
    "sandboxd",
    "server",
    "controllers",
    "engine",
    "service",
    "home",
    "kube",
    "api",
)
ROOT = Path(sandpool.__file__).parent

#: The most modules that ``controllers/`` and ``engine/`` may have together. A module of its own is right for one
#: algorithm with invariants, and wrong for a fragment with one importer.
MOST_MODULES = 75


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "sandpool" and len(parts) > 1 else None


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which layer is meant"
            found.add(node.module or "")
            if node.module == "sandpool":
                found.update(f"sandpool.{alias.name}" for alias in node.names)
    return found


def test_layers_import_downwards_only() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0]
        if own not in LAYERS:
            continue
        above = LAYERS[: LAYERS.index(own)]
        wrong += [f"{path.relative_to(ROOT)} imports {module}" for module in imports(path) if layer_of(module) in above]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_its_layer() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == set(LAYERS)


def test_controllers_and_engine_have_few_modules() -> None:
    modules = [
        str(path.relative_to(ROOT))
        for package in ("controllers", "engine")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert len(modules) <= MOST_MODULES, f"{len(modules)} modules; join a fragment with its one importer"
