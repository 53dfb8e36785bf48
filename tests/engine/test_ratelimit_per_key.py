"""Per-key rate limit: a key beyond its rate waits for the next second, and the others do not."""

from __future__ import annotations

import asyncio
from random import Random

from sandpool.engine.controller import Controller, Result
from sandpool.engine.ratelimit import PerKeyRateLimit
from sandpool.testing.clock import ManualClock


async def test_key_is_limited_to_its_rate_per_second() -> None:
    clock = ManualClock()
    limit: PerKeyRateLimit[str] = PerKeyRateLimit(clock, 2)
    await clock.advance(10.25)
    assert [limit.acquire("a") for _ in range(3)] == [0.0, 0.0, 0.75]
    assert limit.acquire("b") == 0.0
    await clock.advance(0.75)
    assert limit.acquire("a") == 0.0


def test_unlimited_key_never_waits() -> None:
    limit: PerKeyRateLimit[str] = PerKeyRateLimit(ManualClock(), None)
    assert not any(limit.acquire("a") for _ in range(1000))


async def test_reconcile_that_enqueues_itself_is_limited_to_its_rate() -> None:
    clock = ManualClock()
    passes = 0

    async def again(key: str) -> Result:
        nonlocal passes
        passes += 1
        return Result(0.0)

    controller: Controller[str] = Controller("loop", again, clock, Random(0), per_second=10)
    controller.enqueue("a")
    task = asyncio.create_task(controller.run())
    await clock.advance(2.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert passes == 30


async def test_expensive_reconcile_is_followed_by_a_longer_pause() -> None:
    clock = ManualClock()
    passes: list[float] = []

    async def work(key: str) -> Result:
        passes.append(clock.monotonic() - begin)
        return Result(cooldown=0.5)

    controller: Controller[str] = Controller("hard", work, clock, Random(0))
    begin = clock.monotonic()
    task = asyncio.create_task(controller.run())
    for _ in range(10):
        controller.enqueue("a")
        await clock.advance(0.125)
    await clock.advance(10.0)
    assert passes == [0.0, 0.5, 1.0, 1.5], "every change was reconciled, several at a time"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
