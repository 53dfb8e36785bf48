from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandpool.node.images.toolchain import install_toolchain

# Each of these imports several others or makes hundreds of objects; together they take longer than all the rest.
_TOO_MUCH = {"collections", "contextlib", "enum", "functools", "json", "re", "signal", "socket", "subprocess",
             "threading", "typing", "urllib"}  # fmt: skip


@pytest.fixture
def laid_out(tmp_path: Path) -> Path:
    return install_toolchain(tmp_path).parent


def test_a_sandbox_starts_with_few_modules(laid_out: Path) -> None:
    imported = _run(laid_out, "import sandpool.sandboxd.__main__; print(*sys.modules)").split()
    ours = [name for name in imported if name.partition(".")[0] in ("sandpool", "httptools")]
    assert not _TOO_MUCH.intersection(imported)
    assert len(imported) < 60, "as many as Python starts with, and a few"
    assert len(ours) < 16


def test_a_command_needs_no_others(laid_out: Path) -> None:
    script = """
import sandpool.sandboxd.__main__
from sandpool.sandboxd.runtime_api import RuntimeApi
from sandpool.sandboxd.root import Root
class Request:
    method, path, is_wanted = "POST", "/execute", lambda self: True
    def whole(self, limit): return b'{"command": "echo hello"}'
before = set(sys.modules)
assert b"hello" in RuntimeApi(Root(sys.argv[1])).answer(Request()).body
print(*(set(sys.modules) - before))
"""
    assert _run(laid_out, script, str(laid_out.parent)).split() == []


def test_nonsense_is_refused_there_as_it_is_here(laid_out: Path) -> None:
    """The C part of ``json`` relies on the rest of it being imported, which it is wherever there is a test."""
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
    print(api.answer(Request(body)).status)
"""
    assert _run(laid_out, script, str(laid_out.parent)).split() == ["422"] * 10


def test_the_parser_is_the_same_with_and_without_what_it_imports(laid_out: Path) -> None:
    script = """
from sandpool.sandboxd.parser import HttpRequestParser
class Seen:
    def on_url(self, url): print(url)
HttpRequestParser(Seen()).feed_data(b"GET /a HTTP/1.1\\r\\n\\r\\n")
import typing
print(typing.Optional[int])
"""
    assert _run(laid_out, script).splitlines() == ["b'/a'", "typing.Optional[int]"]


def test_it_can_be_started_where_everything_is_installed() -> None:
    """As ``python -m sandpool.sandboxd``, with all of httptools and not what is left of it in a sandbox."""
    command = [sys.executable, "-I", "-c", "import sandpool.sandboxd.__main__, httptools; print(httptools.parser)"]
    assert "httptools" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _run(laid_out: Path, script: str, *arguments: str) -> str:
    begin = f"import sys; sys.path.insert(0, {str(laid_out)!r}); "
    command = [sys.executable, "-I", "-S", "-c", begin + "\n" + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}).stdout
