"""Waiting for descriptors."""

from __future__ import annotations

import asyncio
import os

from sandpool.node.descriptors import readable, writable


async def test_all_tasks_that_wait_for_one_descriptor_are_woken() -> None:
    reader, writer = os.pipe()
    waiting = [asyncio.create_task(readable(reader)) for _ in range(3)]
    await asyncio.sleep(0)
    os.write(writer, b"x")
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting, writable(writer), writable(writer))
        await readable(reader)  # again, after all have left
    os.close(reader)
    os.close(writer)
