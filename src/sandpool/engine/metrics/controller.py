"""How many reconciles a controller makes, how they end and how long they take, under the names everybody knows."""

from __future__ import annotations

from typing import Final

from sandpool.api.metrics import Metric
from sandpool.engine.metrics.registry import MetricsRegistry, Samples

# How a reconcile ends.
SUCCESS: Final = "success"
REQUEUE_AFTER: Final = "requeue_after"
ERROR: Final = "error"

# Of controller-runtime; dashboards and alerts of many projects are built on them.
_LABELS: Final = ("controller",)
_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60),
)

RECONCILES: Final = Metric(
    "controller_runtime_reconcile_total", "counter", ("controller", "result"), "Reconciles, by how they ended."
)
RECONCILE_ERRORS: Final = Metric(
    "controller_runtime_reconcile_errors_total", "counter", _LABELS, "Reconciles that failed."
)
RECONCILE_TIME: Final = Metric(
    "controller_runtime_reconcile_time_seconds", "histogram", _LABELS, "How long reconciles took.", _SECONDS
)
WORKERS: Final = Metric(
    "controller_runtime_max_concurrent_reconciles", "gauge", _LABELS, "How many keys may be reconciled at once."
)
ACTIVE_WORKERS: Final = Metric(
    "controller_runtime_active_workers", "gauge", _LABELS, "How many keys are being reconciled."
)


class ControllerMetrics:
    """Of one controller. Call ``began`` and ``ended`` around every reconcile."""

    def __init__(self, controller: str, workers: int, metrics: MetricsRegistry) -> None:
        self.controller = controller
        self.workers = workers
        self._active = 0
        self._reconciles, self._errors = metrics.counter(RECONCILES), metrics.counter(RECONCILE_ERRORS)
        self._time = metrics.histogram(RECONCILE_TIME)
        # Series that exist from the start, so that a first error is seen as an increase.
        for result in (SUCCESS, REQUEUE_AFTER, ERROR):
            self._reconciles.add(controller, result, amount=0)
        self._errors.add(controller, amount=0)
        metrics.collect(WORKERS, lambda: {(controller,): workers})
        metrics.collect(ACTIVE_WORKERS, self._active_workers)

    def began(self) -> None:
        self._active += 1

    def ended(self, result: str, seconds: float) -> None:
        self._active -= 1
        self._reconciles.add(self.controller, result)
        self._time.observe(seconds, self.controller)
        if result == ERROR:
            self._errors.add(self.controller)

    def _active_workers(self) -> Samples:
        return {(self.controller,): self._active}
