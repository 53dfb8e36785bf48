"""Paths in a container that is being put together never lead out of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.node.launcher.root_directory import Root
from sandpool.node.runtimes.runtime import RuntimeFailure


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "root").mkdir()
    made = Root(str(tmp_path / "root"), os.getuid(), os.getgid())
    yield made
    made.close()


def test_mount_point_is_created_with_its_parents(root: Root, tmp_path: Path) -> None:
    os.close(root.place("/a/b/c", directory=True))
    os.close(root.place("/a/file", directory=False))
    os.close(root.place("/a/b", directory=True))
    assert (tmp_path / "root/a/b/c").is_dir() and (tmp_path / "root/a/file").is_file()


@pytest.mark.parametrize("link", ["/", "/outside", "..", "../outside", "../../../../../../../../"])
def test_links_are_followed_within_the_root(root: Root, tmp_path: Path, link: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/outside").mkdir()
    (tmp_path / "root/link").symlink_to(link)
    os.close(root.place("/link/made", directory=True))
    root.write("/link/file", b"x", 0o644)
    assert list((tmp_path / "outside").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"root", "outside"}
    assert list((tmp_path / "root").rglob("made"))


def test_dangling_link_is_no_mount_point(root: Root, tmp_path: Path) -> None:
    (tmp_path / "root/link").symlink_to("/nowhere")
    with pytest.raises(RuntimeFailure, match="cannot make the mount point //link: File exists"):
        root.place("/link", directory=True)


def test_file_replaces_a_link(root: Root, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "root/etc").mkdir()
    (tmp_path / "root/etc/hosts").symlink_to(victim)
    root.write("/etc/hosts", b"ours", 0o644)
    assert victim.read_text() == "untouched"
    assert (tmp_path / "root/etc/hosts").read_text() == "ours"


def test_mismatched_mount_point_is_an_error(root: Root) -> None:
    os.close(root.place("/file", directory=False))
    with pytest.raises(RuntimeFailure, match="cannot mount a directory at /file"):
        root.place("/file", directory=True)
    with pytest.raises(RuntimeFailure, match="must not contain"):
        root.place("/a/../b", directory=True)
