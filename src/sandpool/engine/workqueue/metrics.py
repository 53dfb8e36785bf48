"""A work queue that says how long keys wait and how long they are worked on, under the names everybody knows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from sandpool.api.metrics import Metric
from sandpool.engine.clock import Clock
from sandpool.engine.metrics.registry import MetricsRegistry, Samples
from sandpool.engine.workqueue.queue import WorkQueue

# Of client-go and controller-runtime; dashboards and alerts of many projects are built on them.
_LABELS: Final = ("name", "controller")
_SECONDS: Final = tuple(10.0**exponent for exponent in range(-8, 4))

QUEUE_DEPTH: Final = Metric("workqueue_depth", "gauge", _LABELS, "Keys that wait.")
ADDS: Final = Metric("workqueue_adds_total", "counter", _LABELS, "Keys added.")
QUEUE_DURATION: Final = Metric(
    "workqueue_queue_duration_seconds", "histogram", _LABELS, "How long keys waited to be worked on.", _SECONDS
)
WORK_DURATION: Final = Metric(
    "workqueue_work_duration_seconds", "histogram", _LABELS, "How long keys were worked on.", _SECONDS
)
UNFINISHED_WORK: Final = Metric(
    "workqueue_unfinished_work_seconds", "gauge", _LABELS, "How long all keys together have been worked on by now."
)
LONGEST_RUNNING: Final = Metric(
    "workqueue_longest_running_processor_seconds", "gauge", _LABELS, "How long the oldest of them has."
)
RETRIES: Final = Metric("workqueue_retries_total", "counter", _LABELS, "Keys added again after a failure.")

K = TypeVar("K", bound=Hashable)


class MeasuredQueue(WorkQueue[K]):
    """The queue of one controller. ``retried`` is for whoever adds a key again because it failed."""

    def __init__(
        self, name: str, metrics: MetricsRegistry, clock: Clock, *, group: Callable[[K], Hashable] = lambda key: None
    ) -> None:
        super().__init__(group=group)
        self.name = name
        self.clock = clock
        self._added: dict[K, float] = {}  # when each key was added that waits, or will when it is done
        self._started: dict[K, float] = {}  # when each key was taken that is with a worker
        self._labels = (name, name)
        self._adds, self._retries = metrics.counter(ADDS), metrics.counter(RETRIES)
        self._waited, self._worked = metrics.histogram(QUEUE_DURATION), metrics.histogram(WORK_DURATION)
        self._adds.add(*self._labels, amount=0)
        self._retries.add(*self._labels, amount=0)
        metrics.collect(QUEUE_DEPTH, self._depth)
        metrics.collect(UNFINISHED_WORK, self._unfinished)
        metrics.collect(LONGEST_RUNNING, self._longest)

    def add(self, key: K, priority: int = 0) -> None:
        if key not in self._added and not self.is_shut_down:
            self._added[key] = self.clock.monotonic()
            self._adds.add(*self._labels)
        super().add(key, priority)

    def retried(self) -> None:
        self._retries.add(*self._labels)

    async def get(self) -> K:
        key = await super().get()
        now = self._started[key] = self.clock.monotonic()
        self._waited.observe(now - self._added.pop(key), *self._labels)
        return key

    def done(self, key: K) -> None:
        self._worked.observe(self.clock.monotonic() - self._started.pop(key), *self._labels)
        super().done(key)

    def _depth(self) -> Samples:
        return {self._labels: len(self)}

    def _unfinished(self) -> Samples:
        now = self.clock.monotonic()
        return {self._labels: sum(now - started for started in self._started.values())}

    def _longest(self) -> Samples:
        now = self.clock.monotonic()
        return {self._labels: max((now - started for started in self._started.values()), default=0.0)}
