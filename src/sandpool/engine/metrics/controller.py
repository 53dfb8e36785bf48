"""Metrics of a controller under the names, labels and buckets of controller-runtime."""

from __future__ import annotations

from typing import Final

from sandpool.api.metrics import Metric
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
