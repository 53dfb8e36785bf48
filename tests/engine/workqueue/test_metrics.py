"""Metrics of a work queue, which otherwise behaves the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable

import pytest

from sandpool.engine.background import ParkingQueue
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import ShutDown, WorkQueue
from sandpool.testing.clock import ManualClock


async def values(metrics: MetricsRegistry, queue: str) -> dict[str, float]:
    text, _ = await metrics.render()
    line_of = re.compile(rf'workqueue_(\w+){{controller="{queue}",name="{queue}"(?:,priority="(-?\d+)")?}} (\S+)')
    found = filter(None, map(line_of.fullmatch, text.decode().splitlines()))
    return {f"{each[1]} {each[2]}" if each[2] else each[1]: float(each[3]) for each in found}


def measured_queue(
    name: str, metrics: MetricsRegistry, clock: ManualClock, *, group: Callable[[str], Hashable] = lambda key: None
) -> WorkQueue[str]:
    return WorkQueue(group=group, observer=QueueMetrics(name, metrics, clock))


async def test_adds_depth_durations_and_retries_are_exported() -> None:
    metrics, clock = MetricsRegistry(), ManualClock()
    queue = measured_queue("claim", metrics, clock)
    measured_queue("other", metrics, clock).add("x")
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert await values(metrics, "claim") == {
        "depth 0": 2,
        "adds_total": 2,
        "unfinished_work_seconds": 0,
        "longest_running_processor_seconds": 0,
        "retries_total": 0,
        "queue_duration_seconds_count": 0,
        "queue_duration_seconds_sum": 0,
        "work_duration_seconds_count": 0,
        "work_duration_seconds_sum": 0,
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
        "depth 0": 0,
        "adds_total": 3,
        "unfinished_work_seconds": 0,
        "longest_running_processor_seconds": 0,
        "retries_total": 1,
        "queue_duration_seconds_count": 3,
        "queue_duration_seconds_sum": 3 + 5 + 1,
        "work_duration_seconds_count": 3,
        "work_duration_seconds_sum": 3 + 1 + 0,
    }


async def test_group_and_priority_reach_the_wrapped_queue() -> None:
    queue = measured_queue("claim", MetricsRegistry(), ManualClock(), group=lambda key: key[0])
    for key in ("a1", "a2", "b1"):
        queue.add(key)
    queue.add("c1", 1)
    assert [await queue.get() for _ in range(4)] == ["c1", "a1", "b1", "a2"]


async def test_add_after_shut_down_is_not_counted() -> None:
    metrics = MetricsRegistry()
    queue = measured_queue("claim", metrics, ManualClock())
    queue.add("a")
    queue.shut_down()
    queue.add("b")
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    with pytest.raises(ShutDown):
        await queue.get()
    assert (await values(metrics, "claim"))["adds_total"] == 1


async def test_waiting_worker_gets_the_next_key() -> None:
    clock = ManualClock()
    queue = measured_queue("claim", MetricsRegistry(), clock)
    worker = asyncio.create_task(queue.get())
    await clock.settle()
    queue.add("a")
    assert await worker == "a"


async def test_depth_is_exported_per_priority() -> None:
    metrics = MetricsRegistry()
    queue = measured_queue("claim", metrics, ManualClock())
    for key, priority in (("a", -100), ("b", -100), ("c", 0), ("d", 5)):
        queue.add(key, priority)
    queue.add("b", 0)
    found = await values(metrics, "claim")
    assert {name: value for name, value in found.items() if name.startswith("depth")} == {
        "depth -100": 1,
        "depth 0": 2,
        "depth 5": 1,
    }


async def test_depth_of_a_priority_that_was_seen_falls_to_zero() -> None:
    metrics = MetricsRegistry()
    queue = measured_queue("claim", metrics, ManualClock())
    queue.add("a", -100)
    assert (await values(metrics, "claim"))["depth -100"] == 1
    queue.done(await queue.get())
    assert (await values(metrics, "claim"))["depth -100"] == 0


async def test_parked_keys_count_as_depth() -> None:
    metrics = MetricsRegistry()
    queue: WorkQueue[str] = ParkingQueue(
        lambda key: True, lambda enter: None, observer=QueueMetrics("claim", metrics, ManualClock())
    )
    queue.add("a", -100)
    assert (await values(metrics, "claim"))["depth -100"] == 1
