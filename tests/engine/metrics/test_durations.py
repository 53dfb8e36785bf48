"""Histograms show the time that passes: the clock moves while a transport or a reconcile works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from sandpool.engine.controller import DONE, Controller, Result, TerminalError
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import RateLimiter
from sandpool.engine.transports import MeasuredTransport, ThrottledTransport
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.errors import ServiceUnavailable
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock


class SlowTransport:
    """Answers every request after two seconds; a DELETE fails."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    async def request(self, request: Request) -> Any:
        await self.clock.sleep(2.0)
        if request.method == "DELETE":
            raise ServiceUnavailable("not now")

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def close(self) -> None: ...


async def samples(metrics: MetricsRegistry) -> dict[str, float]:
    text, _ = await metrics.render()
    lines = [line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_request_duration_covers_the_whole_request(clock: ManualClock) -> None:
    metrics = MetricsRegistry()
    transport = MeasuredTransport(SlowTransport(clock), metrics, clock, "api")
    requests = [asyncio.create_task(transport.request(Request(method, "/"))) for method in ("PATCH", "DELETE")]
    await clock.advance(5)
    await asyncio.gather(*requests, return_exceptions=True)
    found = await samples(metrics)
    assert found['rest_client_request_duration_seconds_sum{host="api",verb="PATCH"}'] == 2.0
    assert found['rest_client_request_duration_seconds_sum{host="api",verb="DELETE"}'] == 2.0
    assert found['rest_client_request_duration_seconds_bucket{host="api",le="1",verb="PATCH"}'] == 0


async def test_request_duration_excludes_the_wait_for_the_rate_limit(clock: ManualClock) -> None:
    """Like client-go, whose request latency begins when the request is sent."""
    metrics = MetricsRegistry()
    measured = MeasuredTransport(SlowTransport(clock), metrics, clock, "api")
    throttled = ThrottledTransport(measured, RateLimiter(1, 1, clock))
    requests = [asyncio.create_task(throttled.request(Request("PATCH", "/"))) for _ in range(3)]
    await clock.advance(10)
    await asyncio.gather(*requests)
    assert (await samples(metrics))['rest_client_request_duration_seconds_sum{host="api",verb="PATCH"}'] == 6.0


async def run(clock: ManualClock, controller: Controller[str], seconds: float) -> None:
    running = asyncio.create_task(controller.run())
    await clock.advance(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_reconcile_and_queue_durations_cover_the_writes_of_a_reconcile(clock: ManualClock) -> None:
    metrics, transport = MetricsRegistry(), SlowTransport(clock)

    async def reconcile(key: str) -> Result:
        await transport.request(Request("PATCH", "/"))
        return DONE

    queue: WorkQueue[str] = WorkQueue(observer=QueueMetrics("claim", metrics, clock))
    controller = Controller(
        "claim", reconcile, clock, Random(0), queue=queue, observer=ControllerMetrics("claim", 1, metrics)
    )
    for key in "ab":
        controller.enqueue(key)
    await run(clock, controller, 10)
    found = await samples(metrics)
    labels = '{controller="claim",name="claim"}'
    assert found['controller_runtime_reconcile_time_seconds_sum{controller="claim"}'] == 4.0
    assert found[f"workqueue_work_duration_seconds_sum{labels}"] == 4.0
    assert found[f"workqueue_queue_duration_seconds_sum{labels}"] == 2.0, "b waited for the one worker"


@pytest.mark.parametrize(
    ("error", "counter"),
    [
        (ZeroDivisionError(), "controller_runtime_reconcile_panics_total"),
        (TimeoutError(), "controller_runtime_reconcile_timeouts_total"),
        (TerminalError("never"), "controller_runtime_terminal_reconcile_errors_total"),
    ],
)
async def test_failed_reconcile_is_counted_by_its_kind(clock: ManualClock, error: Exception, counter: str) -> None:
    metrics, reconciles = MetricsRegistry(), 0

    async def reconcile(key: str) -> Result:
        nonlocal reconciles
        reconciles += 1
        if reconciles == 1:
            raise error
        return DONE

    queue: WorkQueue[str] = WorkQueue(observer=QueueMetrics("claim", metrics, clock))
    observer = ControllerMetrics("claim", 1, metrics)
    controller = Controller("claim", reconcile, clock, Random(0), queue=queue, observer=observer)
    controller.enqueue("a")
    await run(clock, controller, 10)
    found = await samples(metrics)
    terminal = isinstance(error, TerminalError)
    assert found[f'{counter}{{controller="claim"}}'] == 1
    assert found['controller_runtime_reconcile_errors_total{controller="claim"}'] == 1
    assert found['workqueue_retries_total{controller="claim",name="claim"}'] == (0 if terminal else 1)
    assert reconciles == (1 if terminal else 2), "a terminal error is not retried"
