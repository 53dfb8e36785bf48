"""Time limits by the clock that was passed in."""

from __future__ import annotations

import asyncio

import pytest

from sandpool.engine.clock import within
from sandpool.testing.clock import ManualClock


async def test_within_returns_the_result_in_time() -> None:
    clock = ManualClock()

    async def work() -> int:
        await clock.sleep(4)
        return 7

    task = asyncio.create_task(within(clock, 5, work()))
    await clock.advance(4)
    assert await task == 7
    assert clock.sleepers == 0


async def test_within_cancels_late_work_and_waits_for_its_end() -> None:
    clock, ended = ManualClock(), []

    async def work() -> None:
        try:
            await clock.sleep(6)
        finally:
            ended.append(clock.monotonic())

    task = asyncio.create_task(within(clock, 5, work()))
    await clock.advance(5)
    with pytest.raises(TimeoutError, match="not done within 5 s"):
        await task
    assert ended == [5]


async def test_within_raises_the_failure_of_the_work() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(ManualClock(), 5, work())


async def test_cancelling_within_cancels_the_work() -> None:
    clock, ended = ManualClock(), []

    async def work() -> None:
        try:
            await clock.sleep(6)
        finally:
            ended.append(True)

    task = asyncio.create_task(within(clock, 5, work()))
    await clock.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert clock.sleepers == 0
