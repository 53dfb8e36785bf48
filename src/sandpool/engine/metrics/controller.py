"""Metrics of a controller under the names, labels and buckets of controller-runtime, and of the process that runs it.

The metrics of the process are its build, the leader lease, the age of the watches and the events written.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Final

from sandpool import __version__
from sandpool.api.metrics import BUILD_INFO, Metric
from sandpool.engine.events import EventRecorder
from sandpool.engine.leaderelection import LeaderElector
from sandpool.engine.metrics.registry import MetricsRegistry, Samples

# The values of the label ``result``. REQUEUE exists only for dashboards that select it: no reconcile ends with it.
SUCCESS: Final = "success"
REQUEUE: Final = "requeue"
REQUEUE_AFTER: Final = "requeue_after"
ERROR: Final = "error"
_RESULTS: Final = (SUCCESS, REQUEUE, REQUEUE_AFTER, ERROR)

# Kinds of errors that have a counter of their own, beside the one of all errors.
PANIC: Final = "panic"
TIMEOUT: Final = "timeout"
TERMINAL: Final = "terminal"

_LABELS: Final = ("controller",)
_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60),
)

RECONCILES: Final = Metric(
    "controller_runtime_reconcile_total", "counter", ("controller", "result"), "Reconciles, by result."
)
RECONCILE_ERRORS: Final = Metric(
    "controller_runtime_reconcile_errors_total", "counter", _LABELS, "Reconciles that failed."
)
TERMINAL_ERRORS: Final = Metric(
    "controller_runtime_terminal_reconcile_errors_total",
    "counter",
    _LABELS,
    "Reconciles that failed and are not retried.",
)
PANICS: Final = Metric(
    "controller_runtime_reconcile_panics_total", "counter", _LABELS, "Reconciles that failed because of a bug."
)
TIMEOUTS: Final = Metric(
    "controller_runtime_reconcile_timeouts_total", "counter", _LABELS, "Reconciles that failed because of a timeout."
)
RECONCILE_TIME: Final = Metric(
    "controller_runtime_reconcile_time_seconds", "histogram", _LABELS, "Duration of reconciles.", _SECONDS
)
WORKERS: Final = Metric(
    "controller_runtime_max_concurrent_reconciles", "gauge", _LABELS, "Keys that may be reconciled at the same time."
)
ACTIVE_WORKERS: Final = Metric("controller_runtime_active_workers", "gauge", _LABELS, "Keys that are being reconciled.")

LEADING: Final = Metric(
    "leader_election_master_status", "gauge", ("name",), "1 while this process holds the lease, 0 otherwise."
)
SLOW_PATHS: Final = Metric(
    "leader_election_slowpath_total", "counter", ("name",), "Renewals of the lease that had to read it first."
)
# The only metric that tells a dead watch from a quiet one.
SECONDS_SINCE_NEWS: Final = Metric(
    "sandpool_reflector_seconds_since_news",
    "gauge",
    ("resource",),
    "Time since the API last sent anything on a watch, bookmarks included.",
)
EVENTS_WRITTEN: Final = Metric("sandpool_events_written_total", "counter", (), "Events written to the API.")
EVENTS_DROPPED: Final = Metric("sandpool_events_dropped_total", "counter", (), "Events that were dropped.")


class ControllerMetrics:
    """Observes the reconciles of one controller: pass it to the controller as ``observer``."""

    def __init__(self, controller: str, workers: int, metrics: MetricsRegistry) -> None:
        self.controller = controller
        self.workers = workers
        self._active = 0
        # All series exist from the start, so that a first error is seen as an increase.
        self._reconciles = {result: metrics.counter(RECONCILES).series(controller, result) for result in _RESULTS}
        self._errors = metrics.counter(RECONCILE_ERRORS).series(controller)
        self._by_kind = {
            kind: metrics.counter(metric).series(controller)
            for kind, metric in ((PANIC, PANICS), (TIMEOUT, TIMEOUTS), (TERMINAL, TERMINAL_ERRORS))
        }
        self._time = metrics.histogram(RECONCILE_TIME).of(controller)
        metrics.collect(WORKERS, lambda: {(controller,): workers})
        metrics.collect(ACTIVE_WORKERS, self._active_workers)

    def began(self) -> None:
        self._active += 1

    def ended(self, result: str, seconds: float, error_kind: str = "") -> None:
        """Count a reconcile. ``error_kind`` is PANIC, TIMEOUT, TERMINAL, or empty for other errors."""
        self._active -= 1
        self._reconciles[result].value += 1
        self._time.observe(seconds)
        if result == ERROR:
            self._errors.value += 1
            if error_kind:
                self._by_kind[error_kind].value += 1

    def _active_workers(self) -> Samples:
        return {(self.controller,): self._active}


def export_build_info(
    metrics: MetricsRegistry, metric: Metric = BUILD_INFO, *, commit: str = "unknown", date: str = "unknown"
) -> None:
    """Export the build info. Dashboards join on these labels; ``go_version`` holds the version of Python."""
    labels = (
        __version__,
        commit,
        date,
        f"python{platform.python_version()}",
        sys.implementation.name,
        f"{sys.platform}/{platform.machine()}",
    )
    metrics.collect(metric, lambda: {labels: 1})


def export_leadership(metrics: MetricsRegistry, election: LeaderElector) -> None:
    metrics.collect(LEADING, lambda: {(election.name,): float(election.held)})
    metrics.collect(SLOW_PATHS, lambda: {(election.name,): election.slow_paths})


def export_watch_age(metrics: MetricsRegistry, resource: str, age: Callable[[], float]) -> None:
    """Export the age of a watch: ``age`` returns the seconds since the API last sent anything."""
    metrics.collect(SECONDS_SINCE_NEWS, lambda: {(resource,): age()})


def export_event_counts(metrics: MetricsRegistry, recorder: EventRecorder) -> None:
    metrics.collect(EVENTS_WRITTEN, lambda: {(): recorder.written})
    metrics.collect(EVENTS_DROPPED, lambda: {(): recorder.dropped})
