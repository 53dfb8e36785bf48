from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sandpool.node.pods.interfaces import VolumeFailure
from sandpool.node.volumes.root_disk import RootDisks

SIZE = 8 << 20


async def test_containers_of_one_size_share_an_image(tmp_path: Path) -> None:
    disks = RootDisks(tmp_path / "roots")
    images = await asyncio.gather(*(disks.image(SIZE) for _ in range(4)), disks.image(2 * SIZE))
    assert len(set(images)) == 2
    assert [image.stat().st_size for image in images] == [SIZE] * 4 + [2 * SIZE]
    assert set(disks.directory.iterdir()) == set(images), "drafts are renamed"


async def test_an_image_takes_up_little_room(tmp_path: Path) -> None:
    image = await RootDisks(tmp_path).image(10 << 30)
    assert image.stat().st_blocks * 512 < 1 << 20


async def test_a_failure_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = RootDisks(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(shutil, "which", lambda *_, **__: None)
        with pytest.raises(VolumeFailure, match=r"mkfs.ext4 is not installed"):
            await disks.image(SIZE)
    assert (await disks.image(SIZE)).exists()


@pytest.mark.isolation
def test_disks_are_tried_before_they_are_promised(tmp_path: Path) -> None:
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots/of-an-earlier-agent").touch()
    assert RootDisks(tmp_path / "roots").unavailable() == ""
    assert not (tmp_path / "roots/of-an-earlier-agent").exists()


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in RootDisks(tmp_path / "file" / "roots").unavailable()
