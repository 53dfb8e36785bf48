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
#: Packages that serve users and programs, and requests that they leave to ``service``, so that limits, checks of
#: ownership and errors are the same for all.
SURFACES = ("e2b", "dashboard", "mcp")
VERBS = {"get", "list", "watch", "create", "patch", "replace", "delete", "delete_collection"}
OUR_KINDS = {"SANDBOX", "SANDBOX_CLAIM", "SANDBOX_WARM_POOL", "SANDBOX_TEMPLATE"}

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


def requests_for_our_kinds(path: Path) -> list[str]:
    """The calls in a module that ask the API for an object of ours, such as ``client.get(SANDBOX_CLAIM, ...)``."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in VERBS
        and any(isinstance(given, ast.Name) and given.id in OUR_KINDS for given in node.args[:1])
    ]


def test_surfaces_leave_requests_for_our_kinds_to_the_service() -> None:
    assert [
        each for name in SURFACES for path in (ROOT / name).rglob("*.py") for each in requests_for_our_kinds(path)
    ] == []
    assert requests_for_our_kinds(ROOT / "service" / "claims.py"), "the check finds those of the service"


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
