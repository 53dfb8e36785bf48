from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandpool.node.pods.interfaces import VolumeFailure
from sandpool.node.volumes import disk

pytestmark = pytest.mark.isolation

SIZE = 8 << 20
KINDS = [pytest.param(disk.make, id="file"), pytest.param(disk.make_in_memory, id="memory")]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "volume"
    disk.remove(tmp_path / "volume")


def traces(target: Path) -> list[str]:
    """Mounts and loop devices of this target. Other tests mount at the same time."""
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()
    loops = [file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [line for line in (*mounted, *loops) if str(target) in line]


@pytest.mark.parametrize("make", KINDS)
def test_disk_is_empty_and_has_its_size(make: Callable[[Path, int], None], target: Path) -> None:
    make(target, SIZE)
    assert list(target.iterdir()) == []
    with pytest.raises(OSError, match="No space left") as full, (target / "big").open("wb") as file:
        for _ in range(SIZE >> 19):
            file.write(bytes(1 << 20))
            file.flush()
    assert full.value.errno == errno.ENOSPC


@pytest.mark.parametrize("make", KINDS)
def test_make_is_idempotent(make: Callable[[Path, int], None], target: Path) -> None:
    make(target, SIZE)
    (target / "file").write_text("kept")
    make(target, SIZE)
    assert (target / "file").read_text() == "kept"


@pytest.mark.parametrize("make", KINDS)
def test_remove_leaves_nothing_behind(make: Callable[[Path, int], None], target: Path) -> None:
    make(target, SIZE)
    assert traces(target)
    disk.remove(target)
    disk.remove(target)
    assert traces(target) == []
    assert [path.name for path in target.parent.iterdir()] == ["volume"]


def test_missing_tools_are_named(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.unavailable(tmp_path) == ""
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    missing = "mkfs.ext4 is not installed, so a volume cannot be given a size"
    with pytest.raises(VolumeFailure, match=missing):
        disk.make(target, SIZE)
    assert disk.unavailable(tmp_path) == missing
    monkeypatch.undo()
    assert traces(tmp_path) == []


def test_unfinished_image_is_created_again(target: Path) -> None:
    (target.parent / f".{target.name}.disk").write_bytes(b"not a file system")
    disk.make(target, SIZE)
    assert disk.is_mounted(target)


def test_all_disks_below_a_directory_are_unmounted(tmp_path: Path) -> None:
    outer, inner = tmp_path / "a b" / "messages", tmp_path / "a b" / "messages" / "inner"
    for target in (outer, inner):
        disk.make_in_memory(target, SIZE)
    disk.unmount_below(tmp_path / "a b")
    assert traces(tmp_path) == []
    shutil.rmtree(tmp_path / "a b")
