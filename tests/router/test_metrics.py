"""Metrics of a router in another process."""

from __future__ import annotations

import pytest

from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.metrics import RouterMetrics


async def text(metrics: MetricsRegistry) -> set[str]:
    body, _ = await metrics.render()
    return {line for line in body.decode().splitlines() if line.startswith("sandbox_router")}


async def test_values_of_another_process_replace_those_of_the_last_time() -> None:
    here, there = MetricsRegistry(), MetricsRegistry()
    shown, made = RouterMetrics(here), RouterMetrics(there)
    made.answered(b"GET", 200, 0.002, "team")
    made.retried()
    made.decided(False)
    made.failed(TimeoutError())
    shown.load(made.dump())
    made.answered(b"GET", 200, 0.2, "team")
    shown.load(made.dump())
    assert await text(here) == await text(there)
    assert 'sandbox_router_requests_total{code="200",method="GET",sandbox_namespace="team"} 2.0' in await text(here)


@pytest.mark.parametrize(
    "dump",
    [
        b"",
        b"[]",
        b"{}",
        b'{"counters": {}, "durations": [[["GET", "200", "team"], [1], 0.5]]}',
        b'{"counters": {"sandbox_router_requests_total": [[["GET"], 1]]}, "durations": []}',
        b'{"counters": {"sandbox_router_requests_total": [[["GET", "200", ""], -1]]}, "durations": []}',
        b'{"counters": {"sandbox_router_requests_total": [[["GET", "200", ""], "1"]]}, "durations": []}',
        b'{"counters": {"x": [%s]}, "durations": []}' % b",".join([b"[[],1]"] * 20_001),
    ],
    ids=["empty", "list", "incomplete", "buckets", "labels", "negative", "text", "many"],
)
async def test_malformed_dump_is_refused(dump: bytes) -> None:
    metrics = MetricsRegistry()
    router = RouterMetrics(metrics)
    router.retried()
    before = await text(metrics)
    with pytest.raises(ValueError, match="router"):
        router.load(dump)
    assert await text(metrics) == before
