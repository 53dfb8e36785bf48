"""Metrics of a work queue under the names, labels and buckets of client-go and controller-runtime."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

from sandpool.api.metrics import Metric
from sandpool.engine.clock import Clock
from sandpool.engine.metrics.registry import MetricsRegistry, Samples
from sandpool.engine.workqueue.queue import WorkQueue

_LABELS: Final = ("name", "controller")
_SECONDS: Final = tuple(10.0**exponent for exponent in range(-8, 4))

# Labelled by priority like the priority queue of controller-runtime, where new keys have priority 0 and keys of the
# initial list -100.
QUEUE_DEPTH: Final = Metric("workqueue_depth", "gauge", (*_LABELS, "priority"), "Keys that wait for a worker.")
ADDS: Final = Metric("workqueue_adds_total", "counter", _LABELS, "Keys added to the queue.")
QUEUE_DURATION: Final = Metric(
    "workqueue_queue_duration_seconds", "histogram", _LABELS, "Time from adding a key to its reconcile.", _SECONDS
)
WORK_DURATION: Final = Metric(
    "workqueue_work_duration_seconds", "histogram", _LABELS, "Time a worker spent on a key.", _SECONDS
)
UNFINISHED_WORK: Final = Metric(
    "workqueue_unfinished_work_seconds", "gauge", _LABELS, "Sum of the time spent on the keys in progress so far."
)
LONGEST_RUNNING: Final = Metric(
    "workqueue_longest_running_processor_seconds", "gauge", _LABELS, "Time spent so far on the oldest key in progress."
)
RETRIES: Final = Metric("workqueue_retries_total", "counter", _LABELS, "Keys added again after a failure.")

K = TypeVar("K", bound=Hashable)


class QueueMetrics(Generic[K]):
    """Observes the queue of one controller: pass it to the queue as ``observer``."""

    def __init__(self, name: str, metrics: MetricsRegistry, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.metrics = metrics
        self._added: dict[K, float] = {}  # when each key was added that waits, or will wait when it is done
        self._started: dict[K, float] = {}  # when each key was taken that is with a worker
        self._labels = (name, name)
        self._adds, self._retries = (metrics.counter(each).series(*self._labels) for each in (ADDS, RETRIES))
        self._queue_duration, self._work_duration = (
            metrics.histogram(each).of(*self._labels) for each in (QUEUE_DURATION, WORK_DURATION)
        )
        metrics.collect(UNFINISHED_WORK, self._unfinished)
        metrics.collect(LONGEST_RUNNING, self._longest)

    def attach(self, queue: WorkQueue[Any]) -> None:
        seen = {0}  # as in controller-runtime, the series of a priority that was seen stays, at zero

        def depth() -> Samples:
            depths = queue.depth_by_priority()
            seen.update(depths)
            return {(*self._labels, str(priority)): depths.get(priority, 0) for priority in sorted(seen)}

        self.metrics.collect(QUEUE_DEPTH, depth)

    def added(self, key: K) -> None:
        if key not in self._added:
            self._added[key] = self.clock.monotonic()
            self._adds.value += 1

    def taken(self, key: K) -> None:
        now = self._started[key] = self.clock.monotonic()
        self._queue_duration.observe(now - self._added.pop(key))

    def finished(self, key: K) -> None:
        self._work_duration.observe(self.clock.monotonic() - self._started.pop(key))

    def retried(self) -> None:
        self._retries.value += 1

    def _unfinished(self) -> Samples:
        now = self.clock.monotonic()
        return {self._labels: sum(now - started for started in self._started.values())}

    def _longest(self) -> Samples:
        now = self.clock.monotonic()
        return {self._labels: max((now - started for started in self._started.values()), default=0.0)}
