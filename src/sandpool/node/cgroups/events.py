"""Notifications of cgroups: empty, frozen, out of memory.

The kernel modifies the file ``cgroup.events`` on every change, which inotify reports. Nothing is polled.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)
_IN_MODIFY: Final = 0x2
_HEADER: Final = struct.Struct("iIII")  # watch, mask, cookie, length of the name (0 for a file)


class CgroupEvents:
    """Waits until the file of events of a cgroup meets a condition. Belongs to the event loop that waits first."""

    def __init__(self) -> None:
        self._inotify = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        # By watch; set when the file was modified. The kernel returns the same watch for the same file.
        self._waiting: dict[int, list[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait_until(self, file: Path, condition: Callable[[str], bool]) -> None:
        """Return when ``condition`` holds for the text of ``file``, or the file is gone."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._inotify, self._read)
        try:
            if condition(_text(file)):
                return
            watch = _checked(_libc.inotify_add_watch(self._inotify, os.fsencode(file), _IN_MODIFY))
        except FileNotFoundError:
            return
        event = asyncio.Event()
        waiting = self._waiting.setdefault(watch, [])
        waiting.append(event)
        try:
            # Read again once the watch exists, or a change before it would be missed.
            while not condition(_text(file)):
                await event.wait()
                event.clear()
        except OSError as error:
            if not _is_gone(error):
                raise
        finally:
            waiting.remove(event)
            if not waiting:
                self._waiting.pop(watch, None)
                _libc.inotify_rm_watch(self._inotify, watch)

    def recheck_all(self) -> None:
        """Have every waiter check its condition again. The kernel reports no removal of a cgroup, and drops reports of
        earlier changes that it has held back for some milliseconds."""
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._inotify)
        os.close(self._inotify)

    def _read(self) -> None:
        data = os.read(self._inotify, 65536)
        at = 0
        while at < len(data):
            watch, _, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            for event in self._waiting.get(watch, ()):
                event.set()
            if watch < 0:  # the queue of inotify has overflowed
                self.recheck_all()


class OomWatch:
    """Calls back when a v1 cgroup has run out of memory. On v1 the kernel kills one process and lets the others run; on
    v2 it kills all of them together (memory.oom.group)."""

    def __init__(self, memory: Path, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        control = os.open(memory / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (memory / "cgroup.event_control").write_text(f"{self._eventfd} {control}")
        except BaseException:
            os.close(self._eventfd)
            raise
        finally:
            os.close(control)
        self._callback = callback
        self._loop.add_reader(self._eventfd, self._on_oom)

    def close(self) -> None:
        if self._eventfd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._eventfd)
            os.close(self._eventfd)
            self._eventfd = -1

    def _on_oom(self) -> None:
        os.eventfd_read(self._eventfd)
        self._callback()


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _text(file: Path) -> str:
    return file.read_text()  # in kernel memory, so it does not block


def _is_gone(error: OSError) -> bool:
    return error.errno in (2, 19)  # ENOENT; ENODEV is what reading a file of a removed cgroup gives
