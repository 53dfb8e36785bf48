"""Disks for the writable roots of containers.

A container gets a copy of an empty file system of its size (``launcher.loop_device``, ``runtimes.disk_pool``). The
kernel refuses what does not fit (ENOSPC). Project quotas would need no loop devices, but the file system and the kernel
must support them, and a machine has one file system for everything; a disk per container works everywhere and costs 2
ms and some 100 KB.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from sandpool.node.launcher.loop_device import mount_copy
from sandpool.node.pods.interfaces import VolumeFailure
from sandpool.node.runtimes.runtime import RuntimeFailure
from sandpool.node.volumes import disk

#: Bytes of a container's root that sets no ``ephemeral-storage`` limit.
ROOT_SIZE: Final = 10 << 30
_SUFFIX: Final = ".ext4"


class RootDisks:
    """``directory`` holds one image of an empty file system per size, and the disks of containers, which have no
    names."""

    def __init__(self, directory: Path, default_size: int = ROOT_SIZE) -> None:
        self.directory = directory
        self.default_size = default_size
        self._images: dict[int, asyncio.Task[Path]] = {}

    async def image(self, size: int) -> Path:
        """Return an empty file system of this size. Raises ``VolumeFailure``."""
        task = self._images.get(size)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(asyncio.to_thread(self._make, size), name=f"make an empty disk of {size} bytes")
            self._images[size] = task
        return await asyncio.shield(task)

    def _make(self, size: int) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        image = self.directory / f"{size}{_SUFFIX}"
        draft = self.directory / f".{os.getpid()}-{image.name}"
        disk.make_image(draft, size)
        return draft.rename(image)

    def unavailable(self) -> str:
        """Remove the images of an earlier agent, and return why disks cannot be made here; empty if they can."""
        shutil.rmtree(self.directory, ignore_errors=True)
        try:
            os.close(mount_copy(self._make(disk.SMALLEST)))
        except (VolumeFailure, RuntimeFailure, OSError) as error:
            return str(error)
        return ""
