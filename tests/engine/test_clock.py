"""Time limits by the clock that was passed in."""

from __future__ import annotations

import asyncio

import pytest

from sandpool.engine.clock import within
from sandpool.testing.clock import ManualClock


async def test_in_time() -> None:
    clock = ManualClock()

    async def work() -> int:
        await clock.sleep(4)
        return 7

    task = asyncio.create_task(within(clock, 5, work()))
    await clock.advance(4)
    assert await task == 7
    assert clock.sleepers == 0


async def test_late_work_is_cancelled_and_has_ended() -> None:
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


async def test_failure_is_passed_on() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(ManualClock(), 5, work())


async def test_cancelling_ends_the_work() -> None:
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
