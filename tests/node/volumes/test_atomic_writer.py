from __future__ import annotations

import os
from pathlib import Path

from sandpool.node.volumes.atomic_writer import publish
from sandpool.node.volumes.projection import File

ME = (os.geteuid(), os.getegid())


def read(directory: Path) -> dict[str, bytes]:
    """The visible files and their content."""
    found: dict[str, bytes] = {}
    for base, _, names in os.walk(directory, followlinks=True):
        for name in names:
            path = Path(base, name)
            relative = str(path.relative_to(directory))
            if not relative.startswith(".."):
                found[relative] = path.read_bytes()
    return found


def test_files_have_their_content_and_mode(tmp_path: Path) -> None:
    assert publish(tmp_path / "volume", {"a": File(b"1", 0o400), "deep/b": File(b"2", 0o644)}, *ME)
    assert read(tmp_path / "volume") == {"a": b"1", "deep/b": b"2"}
    assert (tmp_path / "volume/a").stat().st_mode & 0o777 == 0o400


def test_update_replaces_all_files_at_once(tmp_path: Path) -> None:
    publish(tmp_path, {"a": File(b"1", 0o644), "gone/b": File(b"2", 0o644)}, *ME)
    handle = (tmp_path / "a").open("rb")
    assert publish(tmp_path, {"a": File(b"3", 0o644), "c": File(b"4", 0o644)}, *ME)
    assert read(tmp_path) == {"a": b"3", "c": b"4"}
    with handle:
        assert handle.read() == b"1", "who has read the old file goes on with it"
    # The link, one version, and the visible names: the old version is deleted.
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("..")]) == 2


def test_unchanged_files_are_not_written(tmp_path: Path) -> None:
    files = {"a": File(b"1", 0o600)}
    assert publish(tmp_path, files, *ME)
    assert not publish(tmp_path, files, *ME)
    assert publish(tmp_path, {"a": File(b"1", 0o644)}, *ME), "a mode is a change"


def test_volume_can_be_empty(tmp_path: Path) -> None:
    publish(tmp_path / "volume", {}, *ME)
    assert read(tmp_path / "volume") == {}
