"""Mounted disks for the roots of containers, made before they are needed.

Attaching and mounting a disk takes 2 ms of processor time, but on a busy machine ten times as long: the kernel waits
for its own threads. A few spare disks keep that out of the start of a container. The descriptor of a disk that a
container uses stays open here until the container is deleted. Otherwise the end of its last process would wait for the
unmounting as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from sandpool.node.launcher.loop_device import mount_copy
from sandpool.node.runtimes.runtime import RuntimeFailure

_log = logging.getLogger(__name__)

_SPARES: Final = 4  # per image: containers that are started at once have to share two cores anyway
_IMAGES: Final = 4  # with spares


class DiskPool:
    def __init__(self) -> None:
        self._spares: OrderedDict[Path, deque[int]] = OrderedDict()  # the image used last is the last
        self._tasks: set[asyncio.Task[None]] = set()
        self._filling: set[Path] = set()
        self._is_closed = False

    async def take(self, image: Path) -> int:
        """Return the descriptor of a mounted copy of the image. Raises ``RuntimeFailure``."""
        spares = self._spares.setdefault(image, deque())
        self._spares.move_to_end(image)
        disk = spares.popleft() if spares else await asyncio.to_thread(mount_copy, image)
        if image not in self._filling and not self._is_closed:
            self._filling.add(image)
            self._begin(self._fill(image))
        return disk

    def give_back(self, disk: int) -> None:
        """Close a disk that no container uses any more; the kernel then removes it."""
        self._begin(asyncio.to_thread(os.close, disk))

    async def close(self) -> None:
        """Close the spare disks. Containers keep theirs."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        for image in list(self._spares):
            await self._drop(image)

    async def _fill(self, image: Path) -> None:
        try:
            while not self._is_closed and len(spares := self._spares.get(image, deque())) < _SPARES:
                spares.append(await asyncio.to_thread(mount_copy, image))
                self._spares.setdefault(image, spares)
            while len(self._spares) > _IMAGES:
                await self._drop(next(iter(self._spares)))
        except RuntimeFailure as error:  # a container that needs one reports it
            _log.debug("no spare disk: %s", error)
        finally:
            self._filling.discard(image)

    async def _drop(self, image: Path) -> None:
        for disk in self._spares.pop(image, deque()):
            await asyncio.to_thread(os.close, disk)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
