"""Metrics of reconciles."""

from __future__ import annotations

from sandpool.engine.metrics.controller import (
    ERROR,
    PANIC,
    REQUEUE_AFTER,
    SUCCESS,
    TERMINAL,
    TIMEOUT,
    ControllerMetrics,
)
from sandpool.engine.metrics.registry import MetricsRegistry


async def lines(metrics: MetricsRegistry) -> set[str]:
    text, _ = await metrics.render()
    return {line.removeprefix("controller_runtime_") for line in text.decode().splitlines()}


async def test_reconciles_are_counted_and_timed_by_result() -> None:
    metrics = MetricsRegistry()
    claim = ControllerMetrics("sandboxclaim", 50, metrics)
    assert {
        'reconcile_total{controller="sandboxclaim",result="error"} 0.0',
        'reconcile_errors_total{controller="sandboxclaim"} 0.0',
        'max_concurrent_reconciles{controller="sandboxclaim"} 50.0',
        'active_workers{controller="sandboxclaim"} 0.0',
    } <= await lines(metrics)
    for _ in range(4):
        claim.began()
    claim.ended(SUCCESS, 0.003)
    claim.ended(ERROR, 0.2)
    claim.ended(REQUEUE_AFTER, 0.01)
    assert {
        'reconcile_total{controller="sandboxclaim",result="success"} 1.0',
        'reconcile_total{controller="sandboxclaim",result="error"} 1.0',
        'reconcile_total{controller="sandboxclaim",result="requeue_after"} 1.0',
        'reconcile_errors_total{controller="sandboxclaim"} 1.0',
        'active_workers{controller="sandboxclaim"} 1.0',
        'reconcile_time_seconds_bucket{controller="sandboxclaim",le="0.005"} 1.0',
        'reconcile_time_seconds_bucket{controller="sandboxclaim",le="0.01"} 2.0',
        'reconcile_time_seconds_count{controller="sandboxclaim"} 3.0',
    } <= await lines(metrics)


async def test_errors_are_counted_by_kind() -> None:
    metrics = MetricsRegistry()
    claim = ControllerMetrics("sandboxclaim", 50, metrics)
    for kind in (PANIC, PANIC, TIMEOUT, TERMINAL, ""):
        claim.began()
        claim.ended(ERROR, 0.1, kind)
    assert {
        'reconcile_errors_total{controller="sandboxclaim"} 5.0',
        'reconcile_panics_total{controller="sandboxclaim"} 2.0',
        'reconcile_timeouts_total{controller="sandboxclaim"} 1.0',
        'terminal_reconcile_errors_total{controller="sandboxclaim"} 1.0',
    } <= await lines(metrics)
