"""What a queue says about itself, and that it is the same queue otherwise."""

from __future__ import annotations

import asyncio

import pytest

from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.workqueue.metrics import MeasuredQueue
from sandpool.engine.workqueue.queue import ShutDown
from sandpool.testing.clock import ManualClock


async def values(metrics: MetricsRegistry, queue: str) -> dict[str, float]:
    text, _ = await metrics.render()
    labels = f'{{controller="{queue}",name="{queue}"}}'
    return {
        line.split("{")[0].removeprefix("workqueue_"): float(line.split()[-1])
        for line in text.decode().splitlines()
        if line.startswith("workqueue_") and labels in line
    }


async def test_times_and_numbers() -> None:
    metrics, clock = MetricsRegistry(), ManualClock()
    queue = MeasuredQueue[str]("claim", metrics, clock)
    MeasuredQueue[str]("other", metrics, clock).add("x")
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert await values(metrics, "claim") == {
        "depth": 2,
        "adds_total": 2,
        "unfinished_work_seconds": 0,
        "longest_running_processor_seconds": 0,
        "retries_total": 0,
    }
    await clock.advance(3)
    assert await queue.get() == "a"
    await clock.advance(2)
    assert await queue.get() == "b"
    queue.add("a")  # waits from now on, though it is with a worker
    queue.add("a", 5)
    await clock.advance(1)
    found = await values(metrics, "claim")
    assert found["unfinished_work_seconds"] == 3 + 1
    assert found["longest_running_processor_seconds"] == 3
    queue.done("a")
    queue.retried()
    assert await queue.get() == "a"
    queue.done("a")
    queue.done("b")
    found = await values(metrics, "claim")
    assert found == {
        "depth": 0,
        "adds_total": 3,
        "unfinished_work_seconds": 0,
        "longest_running_processor_seconds": 0,
        "retries_total": 1,
        "queue_duration_seconds_count": 3,
        "queue_duration_seconds_sum": 3 + 5 + 1,
        "work_duration_seconds_count": 3,
        "work_duration_seconds_sum": 3 + 1 + 0,
    }


async def test_group_and_priority_are_passed_on() -> None:
    queue = MeasuredQueue[str]("claim", MetricsRegistry(), ManualClock(), group=lambda key: key[0])
    for key in ("a1", "a2", "b1"):
        queue.add(key)
    queue.add("c1", 1)
    assert [await queue.get() for _ in range(4)] == ["c1", "a1", "b1", "a2"]


async def test_nothing_is_added_after_shut_down() -> None:
    metrics = MetricsRegistry()
    queue = MeasuredQueue[str]("claim", metrics, ManualClock())
    queue.add("a")
    queue.shut_down()
    queue.add("b")
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    with pytest.raises(ShutDown):
        await queue.get()
    assert (await values(metrics, "claim"))["adds_total"] == 1


async def test_worker_that_waits() -> None:
    clock = ManualClock()
    queue = MeasuredQueue[str]("claim", MetricsRegistry(), clock)
    worker = asyncio.create_task(queue.get())
    await clock.settle()
    queue.add("a")
    assert await worker == "a"
