"""Root writes files for a user without being led elsewhere by that user's links."""

from __future__ import annotations

import os
import socket
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


@pytest.mark.parametrize("place", ["short", "long" * 50])
def test_a_socket_is_private_and_replaces_one_that_was_left(tmp_path: Path, place: str) -> None:
    with open_directory(tmp_path, place, uid=UID, gid=GID) as directory:
        left = directory.listen("run.sock")
        left.close()
        server = directory.listen("run.sock")
    status = (tmp_path / place / "run.sock").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, stat.S_ISSOCK(status.st_mode)) == (0o600, UID, True)
    server.close()


@as_root
def test_a_socket_belongs_to_the_user(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER, OTHER)
    with open_directory(tmp_path, uid=OTHER, gid=OTHER) as directory, directory.listen("run.sock"):
        status = (tmp_path / "run.sock").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (OTHER, OTHER, 0o600)


@as_root
@pytest.mark.parametrize("other", ["file", "link", "second name"])
def test_a_file_that_the_user_put_in_place_of_a_new_socket_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    socket_of_root = socket.socket(socket.AF_UNIX)
    socket_of_root.bind(str(tmp_path / "socket"))
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, OTHER, OTHER)

    class Replaced(socket.socket):
        def bind(self, address: object, /) -> None:
            super().bind(address)  # type: ignore[arg-type]
            place = home / "run.sock"
            place.unlink()
            if other == "link":
                place.symlink_to(secret)
            else:
                os.link(secret if other == "file" else tmp_path / "socket", place)

    monkeypatch.setattr(socket, "socket", Replaced)
    with pytest.raises(NotOwned), open_directory(home, uid=OTHER, gid=OTHER) as directory:
        directory.listen("run.sock")
    assert secret.stat().st_uid == (tmp_path / "socket").stat().st_uid == 0
    socket_of_root.close()


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
