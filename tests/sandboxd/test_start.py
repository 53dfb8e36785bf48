from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandpool.node.images.toolchain import install_toolchain

# Each of these imports several others or creates hundreds of objects. Together they would dominate the start.
_EXPENSIVE = {"collections", "contextlib", "enum", "functools", "json", "re", "signal", "socket", "subprocess",
              "threading", "typing", "urllib"}  # fmt: skip


@pytest.fixture
def toolchain(tmp_path: Path) -> Path:
    return install_toolchain(tmp_path).parent


def test_start_imports_few_modules(toolchain: Path) -> None:
    imported = _run(toolchain, "import sandpool.sandboxd.__main__; print(*sys.modules)").split()
    ours = [name for name in imported if name.partition(".")[0] == "sandpool"]
    assert not _EXPENSIVE.intersection(imported)
    assert len(imported) < 60, "the modules Python starts with, and a few"
    assert len(ours) < 13


def test_command_imports_nothing_more(toolchain: Path) -> None:
    script = """
import sandpool.sandboxd.__main__
from sandpool.sandboxd.runtime_api import RuntimeApi
from sandpool.sandboxd.root import Root
class Request:
    method, path, is_wanted = "POST", "/execute", lambda self: True
    def whole(self, limit): return b'{"command": "echo hello"}'
before = set(sys.modules)
assert b"hello" in RuntimeApi(Root(sys.argv[1])).handle(Request()).body
print(*(set(sys.modules) - before))
"""
    assert _run(toolchain, script, str(toolchain.parent)).split() == []


def test_invalid_json_is_rejected_without_the_json_package(toolchain: Path) -> None:
    """``_json`` looks for the exceptions of ``json`` among the imported modules. In the process of a test they are
    imported, in a sandbox they are not."""
    script = """
from sandpool.sandboxd.runtime_api import RuntimeApi
from sandpool.sandboxd.root import Root
class Request:
    method, path, is_wanted = "POST", "/execute", lambda self: True
    def __init__(self, body): self.body = body
    def whole(self, limit): return self.body
api = RuntimeApi(Root(sys.argv[1]))
deep = [letters * 100_000 for letters in (b'[', b'{"a":')]
for body in [b'{bad', b'{', b'{"command"}', b'"a', b'["a"', b'nope', b'', b'{"a": "\\\\x"}', *deep]:
    print(api.handle(Request(body)).status)
"""
    assert _run(toolchain, script, str(toolchain.parent)).split() == ["422"] * 10


def test_sandboxd_imports_where_the_whole_package_is_installed() -> None:
    """As ``python -m sandpool.sandboxd``, with all of site-packages and not only the toolchain of a sandbox."""
    command = [sys.executable, "-I", "-c", "import sandpool.sandboxd.__main__; print(sandpool.sandboxd.__name__)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "sandpool.sandboxd\n"


def _run(toolchain: Path, script: str, *arguments: str) -> str:
    begin = f"import sys; sys.path.insert(0, {str(toolchain)!r}); "
    command = [sys.executable, "-I", "-S", "-c", begin + "\n" + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}).stdout
