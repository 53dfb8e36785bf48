"""The wheel: it has everything, and works where nothing of the repository is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sandpool

ROOT = Path(__file__).parents[1]
PACKAGE = Path(sandpool.__file__).parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = place.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(place / "unpacked")
    return place / "unpacked"


def files(package: Path) -> set[str]:
    found = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(package)) for path in found}


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    missing = files(PACKAGE) - files(wheel / "sandpool")
    assert missing == set()
    (entry_points,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "sandpool = sandpool.cli.entry:main" in entry_points.read_text()


def test_the_wheel_has_nothing_but_the_package(wheel: Path) -> None:
    (metadata,) = wheel.glob("sandpool-*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"sandpool", metadata.name}
    # ``sandpool.testing`` is for the tests of users; ours are not in the wheel.
    ours = [
        name
        for name in files(wheel)
        if {"tests", "benchmarks"} & set(Path(name).parts) or Path(name).match("test_*.py") or "conftest" in name
    ]
    assert ours == []


def test_only_the_pytest_plugin_needs_pytest(wheel: Path) -> None:
    found = {
        str(path.relative_to(wheel / "sandpool"))
        for path in (wheel / "sandpool").rglob("*.py")
        if {"pytest", "_pytest"} & imported(path)
    }
    assert found == {"testing/fixtures.py"}


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports, anywhere in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_a_home_starts_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    program = (
        "import sys, sandpool; assert sandpool.__file__.startswith(sys.argv[1]), sandpool.__file__; "
        "from sandpool.cli.main import main; main(sys.argv[2:], prog_name='sandpool')"
    )
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "KUBE", "SUDO_"))},
        "HOME": str(tmp_path),
        "PYTHONPATH": str(wheel),
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, str(wheel), *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    addresses = ("--port", "0", "--router-bind-address", "127.0.0.1:0", "--metrics-bind-address", "0")
    assert " is running, pid " in run("up", "-d", "--simulated-nodes", "1", *addresses)
    assert run("down").startswith("stopped the home")
