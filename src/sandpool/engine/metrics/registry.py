"""Metrics registry: counters and histograms of one process in the Prometheus format.

Metrics are updated thousands of times a second and scraped a few times a minute, so the cost is moved to the scrape. A
counter is a number in a dict and a histogram a list of numbers; they need no locks because only the event loop touches
them. Values that can be read at any time (the depth of a queue, the number of sandboxes) are collected per scrape. The
text is rendered in a thread, from a copy: a few hundred series take tens of milliseconds, and no claim should wait for
that.

``prometheus-client`` renders the text. Its own counters and histograms would work too, at three times the cost.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from sandpool.api.metrics import Metric

_log = logging.getLogger(__name__)

# The label values of a series, in the order of the metric's labels.
Labels = tuple[str, ...]
Samples = Mapping[Labels, float]
Collect = Callable[[], Samples]
# Brings metrics of another process up to date.
Refresh = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class CounterSeries:
    """One series of a counter. Code that counts often keeps it and adds to ``value``."""

    value: float = 0.0


class Counter:
    """A counter. Adding 0 creates a series before its first increment."""

    __slots__ = ("_series", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._series: dict[Labels, CounterSeries] = {}

    def series(self, *labels: str) -> CounterSeries:
        """The series with these labels, which begins at 0."""
        series = self._series.get(labels)
        if series is None:
            _check(self.metric, labels)
            series = self._series[labels] = CounterSeries()
        return series

    def add(self, *labels: str, amount: float = 1.0) -> None:
        self.series(*labels).value += amount

    def copy(self) -> _Values:
        return _Values(self.metric, list(self.values.items()))

    @property
    def values(self) -> Mapping[Labels, float]:
        return {labels: series.value for labels, series in self._series.items()}

    def replace(self, values: Mapping[Labels, float]) -> None:
        """Replace all series by those of a counter in another process."""
        for labels in values:
            _check(self.metric, labels)
        self._series = {labels: CounterSeries(value) for labels, value in values.items()}


@dataclass(slots=True)
class HistogramSeries:
    """One series of a histogram. Code that measures often keeps it."""

    bounds: Sequence[float]
    counts: list[int]  # the number of values in each bucket, the last bucket being +Inf
    total: float = 0.0  # sum of the values

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Histogram:
    """A histogram."""

    __slots__ = ("_bounds", "_series", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._bounds = metric.buckets
        self._series: dict[Labels, HistogramSeries] = {}

    def of(self, *labels: str) -> HistogramSeries:
        """The series with these labels. It exists from then on, even without a value."""
        series = self._series.get(labels)
        if series is None:
            _check(self.metric, labels)
            series = self._series[labels] = HistogramSeries(self._bounds, [0] * (len(self._bounds) + 1))
        return series

    def observe(self, value: float, *labels: str) -> None:
        self.of(*labels).observe(value)

    @property
    def series(self) -> Mapping[Labels, tuple[Sequence[int], float]]:
        """Per series: the number of values in each bucket, the last being +Inf, and their sum."""
        return {labels: (series.counts, series.total) for labels, series in self._series.items()}

    def replace(self, series: Mapping[Labels, tuple[Sequence[int], float]]) -> None:
        """Replace all series by those of a histogram in another process."""
        for labels, (counts, _) in series.items():
            _check(self.metric, labels)
            if len(counts) != len(self._bounds) + 1:
                raise ValueError(f"{self.metric.name} has {len(self._bounds) + 1} buckets, not {len(counts)}")
        self._series = {
            labels: HistogramSeries(self._bounds, list(counts), total) for labels, (counts, total) in series.items()
        }

    def copy(self) -> _Distributions:
        series = [(labels, series.counts.copy(), series.total) for labels, series in self._series.items()]
        return _Distributions(self.metric, series)


class MetricsRegistry:
    """All metrics of a process. Components get the registry and look up metrics by their definition.

    Two lookups of one metric return the same object, so components may share it.
    """

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        self._counts: dict[str, Counter] = {}
        self._distributions: dict[str, Histogram] = {}
        self._collected: dict[str, tuple[Metric, list[Collect]]] = {}
        self._refreshes: list[Refresh] = []
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def counter(self, metric: Metric) -> Counter:
        counter = self._counts.get(metric.name)
        if counter is None:
            counter = self._counts[metric.name] = Counter(metric)
        return counter

    def histogram(self, metric: Metric) -> Histogram:
        histogram = self._distributions.get(metric.name)
        if histogram is None:
            histogram = self._distributions[metric.name] = Histogram(metric)
        return histogram

    def collect(self, metric: Metric, collect: Collect) -> None:
        """Call ``collect`` for the values at every scrape. Several functions may contribute to one metric."""
        self._collected.setdefault(metric.name, (metric, []))[1].append(collect)

    def refresh_with(self, refresh: Refresh) -> None:
        """Await ``refresh`` before every scrape. It must not raise."""
        self._refreshes.append(refresh)

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Render all metrics in the format that an Accept header prefers. Returns the text and its content type."""
        for refresh in self._refreshes:
            await refresh()
        encode, content_type = choose_encoder(accept)
        scrape = _Scrape(
            self._process,
            [_Values(metric, list(_samples(metric, sources))) for metric, sources in self._collected.values()]
            + [count.copy() for count in self._counts.values()],
            [distribution.copy() for distribution in self._distributions.values()],
            "openmetrics" in content_type,
        )
        return await asyncio.to_thread(encode, scrape), content_type


@dataclass(slots=True)
class _Values:
    metric: Metric
    samples: list[tuple[Labels, float]]

    def family(self) -> Family:
        kind = CounterMetricFamily if self.metric.kind == "counter" else GaugeMetricFamily
        family = kind(self.metric.name, self.metric.description, labels=self.metric.labels)
        for labels, value in self.samples:
            family.add_metric(labels, value)
        return family


@dataclass(slots=True)
class _Distributions:
    metric: Metric
    series: list[tuple[Labels, list[int], float]]

    def family(self, openmetrics: bool) -> Family:
        family = HistogramMetricFamily(self.metric.name, self.metric.description, labels=self.metric.labels)
        bounds = [*(_bound(bound, openmetrics) for bound in self.metric.buckets), "+Inf"]
        for labels, counts, total in self.series:
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
        return family


@dataclass(slots=True)
class _Scrape:
    """The copy of all metrics that one scrape renders."""

    process: CollectorRegistry
    values: list[_Values]
    distributions: list[_Distributions]
    openmetrics: bool

    def collect(self) -> Iterable[Family]:
        yield from self.process.collect()
        for values in self.values:
            yield values.family()
        for distributions in self.distributions:
            yield distributions.family(self.openmetrics)


def _check(metric: Metric, labels: Labels) -> None:
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")


def _samples(metric: Metric, sources: list[Collect]) -> Iterator[tuple[Labels, float]]:
    for collect in sources:
        try:
            yield from collect().items()
        except Exception as error:  # noqa: BLE001 - one broken collector must not hide the others
            _log.error("collecting %s failed", metric.name, exc_info=error)


def _bound(bound: float, openmetrics: bool) -> str:
    """The ``le`` label as Go programs write it, so that queries for le="100" match."""
    text = repr(float(bound))
    return text if openmetrics else text.removesuffix(".0")
