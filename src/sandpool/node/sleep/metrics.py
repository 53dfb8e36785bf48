"""Metrics of sleep: how many pods are frozen, how often pods fell asleep, and how long it took to resume sandboxes."""

from __future__ import annotations

from typing import Final

from sandpool.api.metrics import Metric
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.node.sleep.monitor import SleepMonitor
from sandpool.service.waking import Waker

FROZEN: Final = Metric("sandpool_sleep_frozen_pods", "gauge", (), "Pods that are frozen because they were not used.")
TRANSITIONS: Final = Metric(
    "sandpool_sleep_transitions_total", "counter", ("to",), "How often unused pods were frozen or suspended."
)
WAKES: Final = Metric(
    "sandpool_sleep_wake_duration_seconds",
    "histogram",
    ("result",),
    "Time to resume a sandbox that slept, for the first request that waited for it.",
    (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 15.0, 30.0, 60.0),
)


def report_sleep(monitor: SleepMonitor, waker: Waker | None, metrics: MetricsRegistry) -> None:
    """Have the metrics show what the monitor and the waker do."""
    metrics.collect(FROZEN, lambda: {(): float(monitor.frozen)})
    metrics.collect(TRANSITIONS, lambda: {(to,): float(count) for to, count in monitor.transitions.items()})
    if waker is not None:
        wakes = metrics.histogram(WAKES)
        waker.done = lambda succeeded, seconds: wakes.observe(seconds, "success" if succeeded else "failure")
