"""Root writes files for a user without being led elsewhere by that user's links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandpool.home.owned_directory import NotOwned, open_directory

UID, GID = os.geteuid(), os.getegid()
as_root = pytest.mark.skipif(UID != 0, reason="only root writes for another user")
OTHER = 54321


def test_missing_directories_are_created_and_private(tmp_path: Path) -> None:
    with open_directory(tmp_path, "a", "b", uid=UID, gid=GID) as directory:
        path = directory.write("file", b"content")
        assert directory.read("file") == b"content"
    assert path == tmp_path / "a" / "b" / "file"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_a_file_is_replaced_and_no_draft_stays(tmp_path: Path) -> None:
    with open_directory(tmp_path, uid=UID, gid=GID) as directory:
        directory.write("file", b"old")
        directory.write("file", b"new")
        assert os.listdir(tmp_path) == ["file"]
        assert directory.read("file") == b"new"
        directory.remove("file")
        directory.remove("file")
        assert directory.read("file") is None


@as_root
def test_everything_created_belongs_to_the_user(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER, OTHER)
    with open_directory(tmp_path, "a", uid=OTHER, gid=OTHER) as directory:
        path = directory.write("file", b"")
    assert {(each.stat().st_uid, each.stat().st_gid) for each in (path, path.parent)} == {(OTHER, OTHER)}


@as_root
def test_a_link_to_a_directory_of_root_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    (home / ".local").symlink_to(target)
    with (
        pytest.raises(NotOwned, match="belongs to the user with id 0"),
        open_directory(home, ".local", "share", uid=OTHER, gid=OTHER),
    ):
        pass
    assert os.listdir(target) == []


@as_root
def test_a_link_in_place_of_the_file_is_replaced_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    (home / "file").symlink_to(secret)
    with open_directory(home, uid=OTHER, gid=OTHER) as directory:
        assert directory.read("file") is None
        directory.write("file", b"for the user")
    assert secret.read_text() == "of root"
    assert (home / "file").read_bytes() == b"for the user"
