"""Metrics of one process, for Prometheus to fetch.

Three things keep them cheap. Counting and observing look up the time series by its label values in a dict of our own
and touch nothing else: under a microsecond, where ``labels()`` of the Prometheus library takes that long by itself.
What can be read off when somebody asks (the length of a queue, how many sandboxes there are) is not counted at all
but collected per scrape. And the text is made in a thread: a few hundred series take tens of milliseconds, for which
no claim should wait. What is collected is collected in the event loop before that, because caches and queues belong to
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from sandpool.api.metrics import Metric

_log = logging.getLogger(__name__)

# Values of a metric by the values of its labels, which are in the metric's order.
Samples = Mapping[tuple[str, ...], float]
Collect = Callable[[], Samples]

M = TypeVar("M", bound=MetricWrapperBase)


class Count:
    """A counter. Label values are given in the order of the metric's labels."""

    __slots__ = ("_children", "_counter")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._children: dict[tuple[str, ...], Counter] = {}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = _child(self._counter, labels)
        child.inc(amount)


class Distribution:
    """A histogram. Label values are given in the order of the metric's labels."""

    __slots__ = ("_children", "_histogram")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._children: dict[tuple[str, ...], Histogram] = {}

    def observe(self, value: float, *labels: str) -> None:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = _child(self._histogram, labels)
        child.observe(value)


class Metrics:
    """Every part that has metrics of its own is given this one object and asks it for them by their definition.

    Asking twice for one metric gives the same one, so that parts may share it.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counts: dict[str, Count] = {}
        self._distributions: dict[str, Distribution] = {}
        self._collected: dict[str, tuple[Metric, list[Collect]]] = {}
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def count(self, metric: Metric) -> Count:
        if metric.name not in self._counts:
            counter = Counter(metric.name, metric.description, metric.labels, registry=self._registry)
            self._counts[metric.name] = Count(counter)
        return self._counts[metric.name]

    def distribution(self, metric: Metric) -> Distribution:
        if metric.name not in self._distributions:
            histogram = Histogram(
                metric.name, metric.description, metric.labels, buckets=metric.buckets, registry=self._registry
            )
            self._distributions[metric.name] = Distribution(histogram)
        return self._distributions[metric.name]

    def collect(self, metric: Metric, collect: Collect) -> None:
        """Ask ``collect`` for the values at every scrape. Several may contribute to one metric."""
        self._collected.setdefault(metric.name, (metric, []))[1].append(collect)

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in the format an Accept header asks for, and the content type of that."""
        collected = [_collected(metric, sources) for metric, sources in self._collected.values()]
        encode, content_type = choose_encoder(accept)
        return await asyncio.to_thread(encode, _Scrape(self._registry, collected)), content_type


class _Scrape:
    """What is there to be shown once."""

    def __init__(self, registry: CollectorRegistry, collected: list[Family]) -> None:
        self.registry = registry
        self.collected = collected

    def collect(self) -> Iterable[Family]:
        for family in self.registry.collect():
            # When a series began is of no use to anybody who reads these metrics, and a fifth of the text.
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        yield from self.collected


def _child(parent: M, labels: tuple[str, ...]) -> M:
    return parent.labels(*labels) if labels else parent


def _collected(metric: Metric, sources: list[Collect]) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.description, labels=metric.labels)
    for collect in sources:
        try:
            samples = collect()
        except Exception as error:  # noqa: BLE001 - one part that is broken does not hide what the others say
            _log.error("collecting %s failed", metric.name, exc_info=error)
            continue
        for labels, value in samples.items():
            family.add_metric(labels, value)
    return family
