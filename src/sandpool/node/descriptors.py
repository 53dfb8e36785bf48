"""Waits for file descriptors."""

from __future__ import annotations

import asyncio


async def writable(descriptor: int) -> None:
    """Return when a write would not block."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_writer(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_writer(descriptor)


async def readable(descriptor: int) -> None:
    """Return when a read would not block; for a pidfd, when the process has ended."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)
