from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sandpool.node.runtimes import disk_pool
from sandpool.node.runtimes.disk_pool import DiskPool
from sandpool.node.runtimes.runtime import RuntimeFailure


class Disks:
    """Makes files instead of mounts, and knows which of them are open."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.made: list[int] = []
        self.broken = False

    def mount_copy(self, image: Path) -> int:
        if self.broken:
            raise RuntimeFailure("no loop devices")
        self.made.append(os.open(self.file, os.O_RDONLY | os.O_CREAT))
        return self.made[-1]

    @property
    def open(self) -> int:
        """How many are open."""
        return sum(
            os.path.exists(path) and os.readlink(path) == str(self.file)
            for path in (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        )


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disks:
    found = Disks(tmp_path / "disk")
    monkeypatch.setattr(disk_pool, "mount_copy", found.mount_copy)
    return found


async def settle(pool: DiskPool) -> None:
    while pool._tasks:
        await asyncio.wait(pool._tasks)


async def test_a_spare_disk_is_ready_for_the_next_container(disks: Disks, tmp_path: Path) -> None:
    pool = DiskPool()
    first = await pool.take(tmp_path)
    await settle(pool)
    spares = set(disks.made[1:])
    assert len(spares) == 4
    assert await pool.take(tmp_path) in spares
    pool.give_back(first)
    await pool.close()
    assert disks.open == 1, "only the disk of the second container is left"


async def test_spares_are_kept_for_few_sizes(disks: Disks, tmp_path: Path) -> None:
    pool = DiskPool()
    for number in range(6):
        pool.give_back(await pool.take(tmp_path / str(number)))
        await settle(pool)
    assert disks.open == 4 * 4
    await pool.close()
    assert disks.open == 0


async def test_a_disk_that_cannot_be_made_is_an_error_of_its_container(disks: Disks, tmp_path: Path) -> None:
    pool = DiskPool()
    disk = await pool.take(tmp_path)
    disks.broken = True
    await settle(pool)
    while True:
        try:
            pool.give_back(await pool.take(tmp_path))
        except RuntimeFailure as error:
            assert str(error) == "no loop devices"
            break
    pool.give_back(disk)
    await pool.close()
    assert disks.open == 0
