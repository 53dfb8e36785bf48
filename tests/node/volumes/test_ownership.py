from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandpool.node.volumes.ownership import give

pytestmark = pytest.mark.isolation


def test_whole_tree_changes_its_owner(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "deep" / "deeper").mkdir(parents=True)
    (top / "deep" / "file").write_text("x")
    assert give(top, 1234, 1235)
    for path in (top, top / "deep", top / "deep/deeper", top / "deep/file"):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)
    assert not give(top, 1234, 1235)


def test_links_are_changed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    top = tmp_path / "top"
    top.mkdir()
    (top / "directory").symlink_to(outside)
    (top / "file").symlink_to(outside / "secret")
    give(top, 1234, 1234)
    assert (top / "file").lstat().st_uid == 1234
    assert outside.stat().st_uid == (outside / "secret").stat().st_uid == os.geteuid()


def test_top_must_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match=r"Not a directory|Too many"):
        give(tmp_path / "link", 1, 1)
