"""``sandpool cp`` as a user does it, with a real sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sandpool.cli.cp import _remote
from tests.service.test_files import described, make_tree
from tests.support.playground import Playground


@pytest.fixture(scope="module")
def box(home: Playground) -> Iterator[str]:
    name = home.works("claim").strip()
    yield name
    home.works("release", name)


@pytest.mark.isolation
def test_files_and_trees_go_in_and_come_out(home: Playground, box: str) -> None:
    large = home.directory / "large"
    large.write_bytes(os.urandom(5_000_000))
    assert home.works("cp", "large", f"{box}:") == ""
    assert home.works("exec", box, "--", "sh", "-c", "wc -c < large").strip() == "5000000"
    home.works("cp", f"{box}:large", "back")
    assert (home.directory / "back").read_bytes() == large.read_bytes()
    make_tree(home.directory / "tree")
    home.works("cp", "tree", f"{box}:/tmp/copy")
    home.works("cp", f"claim/{box}:/tmp/copy", "tree-back")
    assert described(home.directory / "tree-back") == described(home.directory / "tree")


@pytest.mark.isolation
def test_copy_into_a_full_sandbox_fails_and_leaves_no_file(home: Playground) -> None:
    home.works("template", "create", "small", "--image", "sandpool.local/python", "--disk", "64Mi")
    (home.directory / "too-large").write_bytes(bytes(100_000_000))
    name = home.works("claim", "--template", "small").strip()
    try:
        said = home.fails("cp", "too-large", f"{name}:")
        assert "its disk is full" in said and "more ephemeral-storage" in said
        assert "too-large" not in home.works("exec", name, "--", "ls", "-A")
        assert ".sandpool" not in home.works("exec", name, "--", "ls", "-A")
    finally:
        home.works("release", name)


@pytest.mark.isolation
def test_mistakes_are_one_line_with_advice(home: Playground, box: str) -> None:
    assert "one of the two paths has to be in a sandbox" in home.fails("cp", "a", "b", code=2)
    assert "there is no file or directory nope" in home.fails("cp", "nope", f"{box}:")
    assert "cannot read /nope in the sandbox: tar: nope" in home.fails("cp", f"{box}:/nope", ".")
    assert "there is no claim or sandbox" in home.fails("cp", "missing:/x", ".")


def test_a_path_in_a_sandbox_is_told_from_a_local_one() -> None:
    assert _remote("box:/tmp/x") == ("box", "/tmp/x")
    assert _remote("box:") == ("box", "")
    assert _remote("claim/box:x:y") == ("claim/box", "x:y")
    assert _remote("./a:b") is None
    assert _remote("dir/a:b") is None
    assert _remote(":x") is None
    assert _remote("x") is None
