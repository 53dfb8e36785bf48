"""Waits for file descriptors. Any number of tasks may wait for one descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

# An event loop has one callback per descriptor and direction, so the tasks that wait for it share one.
_Waiting = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, set[asyncio.Event]]]
_writers: Final[_Waiting] = WeakKeyDictionary()
_readers: Final[_Waiting] = WeakKeyDictionary()


async def writable(descriptor: int) -> None:
    """Return when a write would not block."""
    loop = asyncio.get_running_loop()
    await _wait(descriptor, _writers.setdefault(loop, {}), loop.add_writer, loop.remove_writer)


async def readable(descriptor: int) -> None:
    """Return when a read would not block; for a pidfd, when the process has ended."""
    loop = asyncio.get_running_loop()
    await _wait(descriptor, _readers.setdefault(loop, {}), loop.add_reader, loop.remove_reader)


async def _wait(
    descriptor: int,
    waiting: dict[int, set[asyncio.Event]],
    add: Callable[..., None],
    remove: Callable[[int], bool],
) -> None:
    events = waiting.get(descriptor)
    if events is None:
        events = waiting[descriptor] = set()
        add(descriptor, _wake, events)
    event = asyncio.Event()
    events.add(event)
    try:
        await event.wait()
    finally:
        events.discard(event)
        if not events:
            remove(descriptor)
            del waiting[descriptor]


def _wake(events: set[asyncio.Event]) -> None:
    for event in events:
        event.set()
