"""MetricsRegistry of one process, for Prometheus to fetch.

Counting and observing happen thousands of times a second, showing them a few times a minute, so everything is done at
the cheaper end. A counter is a number in a dict and a histogram a list of them; they need no locks, because they are
only touched in the event loop. What can be read off when somebody asks (the length of a queue, how many sandboxes there
are) is not counted at all but collected per scrape. And the text is made in a thread, from a copy: a few hundred series
take tens of milliseconds, for which no claim should wait.

The library ``prometheus-client`` makes the text. Its own counters and histograms would do too, at three times the cost.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from sandpool.api.metrics import Metric

_log = logging.getLogger(__name__)

# The values of a metric's labels, in the metric's order.
Labels = tuple[str, ...]
Samples = Mapping[Labels, float]
Collect = Callable[[], Samples]


class Counter:
    """A counter. A series that is to be there before anything was counted is made by adding 0."""

    __slots__ = ("_values", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._values: dict[Labels, float] = {}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        value = self._values.get(labels)
        if value is None:
            _check(self.metric, labels)
            value = 0.0
        self._values[labels] = value + amount

    def copy(self) -> _Values:
        return _Values(self.metric, list(self._values.items()))


class Histogram:
    """A histogram."""

    __slots__ = ("_bounds", "_series", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._bounds = metric.buckets
        # Of each series: how many values fell into each bucket, the last one being for those above all bounds; and
        # their sum, alone in a list.
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, value: float, *labels: str) -> None:
        series = self._series.get(labels)
        if series is None:
            _check(self.metric, labels)
            series = self._series[labels] = ([0] * (len(self._bounds) + 1), [0.0])
        series[0][bisect_left(self._bounds, value)] += 1
        series[1][0] += value

    def copy(self) -> _Distributions:
        series = [(labels, counts.copy(), sum[0]) for labels, (counts, sum) in self._series.items()]
        return _Distributions(self.metric, series)


class MetricsRegistry:
    """Every part that has metrics of its own is given this one object and asks it for them by their definition.

    Asking twice for one metric gives the same one, so that parts may share it.
    """

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        self._counts: dict[str, Counter] = {}
        self._distributions: dict[str, Histogram] = {}
        self._collected: dict[str, tuple[Metric, list[Collect]]] = {}
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def counter(self, metric: Metric) -> Counter:
        return self._counts.setdefault(metric.name, Counter(metric))

    def histogram(self, metric: Metric) -> Histogram:
        return self._distributions.setdefault(metric.name, Histogram(metric))

    def collect(self, metric: Metric, collect: Collect) -> None:
        """Ask ``collect`` for the values at every scrape. Several may contribute to one metric."""
        self._collected.setdefault(metric.name, (metric, []))[1].append(collect)

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in the format an Accept header asks for, and the content type of that."""
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
    """What there is to be shown, once."""

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
        except Exception as error:  # noqa: BLE001 - one part that is broken does not hide what the others say
            _log.error("collecting %s failed", metric.name, exc_info=error)


def _bound(bound: float, openmetrics: bool) -> str:
    """A bucket's label as programs in Go spell it, so that nobody's query for le="100" comes back empty."""
    text = repr(float(bound))
    return text if openmetrics else text.removesuffix(".0")
