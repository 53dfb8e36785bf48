from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from sandpool.node.images.toolchain import install_toolchain


def test_installed_program_runs_alone(tmp_path: Path) -> None:
    program = install_toolchain(tmp_path)
    look = (
        f"import sys; sys.path.insert(0, {str(program.parent)!r}); import sandpool.sandboxd.__main__, multipart; "
        "print(all(str(m.__file__).startswith(sys.path[0]) for m in list(sys.modules.values()) "
        "if m.__name__.split('.')[0] in ('sandpool', 'multipart')))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look], capture_output=True, text=True, check=False, cwd=tmp_path, env={}
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_form_parser_is_that_of_multipart_beside_python_multipart(tmp_path: Path) -> None:
    """The development environment has both, because ``mcp`` needs the other one."""
    program = install_toolchain(tmp_path)
    look = f"import sys; sys.path.insert(0, {str(program.parent)!r}); import sandpool.sandboxd.multipart_form"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", look], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert find_spec("python_multipart") is not None


def test_toolchain_is_small_and_world_readable(tmp_path: Path) -> None:
    program = install_toolchain(tmp_path)
    files = [path for path in program.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
    assert any(path.suffix == ".pyc" for path in files), "compiled here, because the directory is read-only later"


def test_second_install_is_the_same_toolchain(tmp_path: Path) -> None:
    assert install_toolchain(tmp_path) == install_toolchain(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
