from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from sandpool.engine.controller import DONE, Result
from sandpool.kube.errors import Conflict
from sandpool.server.controllers.reconciler import Reconciler


class Clock:
    """A clock that advances when a task sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def make(handle: Callable[[str], Awaitable[None]], clock: Clock, *, parallel: int = 64) -> Reconciler[str]:
    async def reconcile(key: str) -> Result:
        await handle(key)
        return DONE

    return Reconciler(reconcile, clock, parallel=parallel)


@asynccontextmanager
async def running(reconciler: Reconciler[str]) -> AsyncIterator[None]:
    task = asyncio.create_task(reconciler.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_key_added_repeatedly_is_reconciled_once() -> None:
    handled = []

    async def handle(key: str) -> None:
        handled.append(key)

    reconciler = make(handle, Clock())
    for key in ("a", "b", "a", "a"):
        reconciler.enqueue(key)
    async with running(reconciler):
        await reconciler.settled()
    assert handled == ["a", "b"]


async def test_key_enqueued_during_its_reconcile_is_reconciled_again() -> None:
    inside, log = 0, []
    started, gate = asyncio.Event(), asyncio.Event()

    async def handle(key: str) -> None:
        nonlocal inside
        inside += 1
        log.append(inside)
        started.set()
        await gate.wait()
        inside -= 1

    reconciler = make(handle, Clock())
    reconciler.enqueue("a")
    async with running(reconciler):
        await started.wait()
        reconciler.enqueue("a")
        gate.set()
        await reconciler.settled()
    assert log == [1, 1]


async def test_concurrency_is_limited() -> None:
    inside, most = 0, 0

    async def handle(key: str) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    reconciler = make(handle, Clock(), parallel=3)
    for key in "abcdefgh":
        reconciler.enqueue(key)
    async with running(reconciler):
        await reconciler.settled()
    assert most == 3


async def test_failures_are_retried_with_growing_backoff_and_logged_if_they_persist(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = 0

    async def handle(key: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 7:
            raise Conflict("not now")

    clock = Clock()
    reconciler = make(handle, clock)
    reconciler.enqueue("a")
    with caplog.at_level(logging.WARNING):
        async with running(reconciler):
            await reconciler.settled()
    assert attempts == 7
    assert clock.slept == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16]
    assert [record.message for record in caplog.records] == [
        "reconciling a failed 5 times in a row: not now",
        "reconciling a failed 6 times in a row: not now",
    ]


async def test_exception_in_a_reconcile_is_logged_and_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        if key == "bad" and not handled:
            raise ZeroDivisionError
        handled.append(key)

    reconciler = make(handle, Clock())
    reconciler.enqueue("bad")
    reconciler.enqueue("good")
    async with running(reconciler):
        await reconciler.settled()
    assert handled == ["good", "bad"]
    assert "reconciling bad failed" in caplog.text


async def test_a_cancelled_key_is_reconciled_by_the_next_run() -> None:
    handled: list[str] = []
    gate = asyncio.Event()

    async def handle(key: str) -> None:
        await gate.wait()
        handled.append(key)

    reconciler = make(handle, Clock())
    reconciler.enqueue("a")
    async with running(reconciler):
        await asyncio.sleep(0)
    assert not reconciler.idle
    gate.set()
    async with running(reconciler):
        await reconciler.settled()
    assert handled == ["a"]


async def test_delayed_key_is_added_once() -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        handled.append(key)

    clock = Clock()
    reconciler = make(handle, clock)
    reconciler.enqueue_after("a", 3.0)
    reconciler.enqueue_after("a", 1.0)
    async with running(reconciler):
        for _ in range(10):
            await asyncio.sleep(0)
    assert handled == ["a"]
    assert clock.slept == [3.0]


async def test_reconcile_can_requeue_after_a_delay() -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> Result:
        seen.append(key)
        return Result(requeue_after=2.0) if len(seen) == 1 else DONE

    clock = Clock()
    reconciler: Reconciler[str] = Reconciler(reconcile, clock)
    reconciler.enqueue("a")
    async with running(reconciler):
        for _ in range(20):
            await asyncio.sleep(0)
    assert (seen, clock.slept) == (["a", "a"], [2.0])
