from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from sandpool.kube.errors import Conflict
from sandpool.server.controllers.backlog import Backlog


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def running(backlog: Backlog[str]) -> AsyncIterator[None]:
    task = asyncio.create_task(backlog.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_key_added_often_is_handled_once() -> None:
    handled = []

    async def handle(key: str) -> None:
        handled.append(key)

    backlog = Backlog(handle, Clock())
    for key in ("a", "b", "a", "a"):
        backlog.add(key)
    async with running(backlog):
        await backlog.settled()
    assert handled == ["a", "b"]


async def test_a_key_added_while_it_is_handled_is_handled_again_and_never_twice_at_once() -> None:
    inside, log = 0, []
    started, gate = asyncio.Event(), asyncio.Event()

    async def handle(key: str) -> None:
        nonlocal inside
        inside += 1
        log.append(inside)
        started.set()
        await gate.wait()
        inside -= 1

    backlog = Backlog(handle, Clock())
    backlog.add("a")
    async with running(backlog):
        await started.wait()
        backlog.add("a")
        gate.set()
        await backlog.settled()
    assert log == [1, 1]


async def test_as_many_keys_at_once_as_allowed() -> None:
    inside, most = 0, 0

    async def handle(key: str) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    backlog = Backlog(handle, Clock(), parallel=3)
    for key in "abcdefgh":
        backlog.add(key)
    async with running(backlog):
        await backlog.settled()
    assert most == 3


async def test_failures_are_tried_again_after_growing_pauses_and_reported_if_they_persist(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = 0

    async def handle(key: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 7:
            raise Conflict("not now")

    clock = Clock()
    backlog = Backlog(handle, clock)
    backlog.add("a")
    with caplog.at_level(logging.WARNING):
        async with running(backlog):
            await backlog.settled()
    assert attempts == 7
    assert clock.slept == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16]
    assert [record.message for record in caplog.records] == [
        "handling a failed 5 times in a row: not now",
        "handling a failed 6 times in a row: not now",
    ]


async def test_a_bug_in_the_handler_is_seen_and_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        if key == "bad" and not handled:
            raise ZeroDivisionError
        handled.append(key)

    backlog = Backlog(handle, Clock())
    backlog.add("bad")
    backlog.add("good")
    async with running(backlog):
        await backlog.settled()
    assert handled == ["good", "bad"]
    assert "handling bad failed" in caplog.text


async def test_what_was_not_finished_is_handled_by_whoever_runs_it_next() -> None:
    handled: list[str] = []
    gate = asyncio.Event()

    async def handle(key: str) -> None:
        await gate.wait()
        handled.append(key)

    backlog = Backlog(handle, Clock())
    backlog.add("a")
    async with running(backlog):
        await asyncio.sleep(0)
    assert not backlog.idle
    gate.set()
    async with running(backlog):
        await backlog.settled()
    assert handled == ["a"]


async def test_a_key_to_be_added_later_is_added_once() -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        handled.append(key)

    clock = Clock()
    backlog = Backlog(handle, clock)
    backlog.add_later("a", 3.0)
    backlog.add_later("a", 1.0)
    async with running(backlog):
        for _ in range(10):
            await asyncio.sleep(0)
    assert handled == ["a"]
    assert clock.slept == [3.0]
