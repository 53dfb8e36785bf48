"""Metrics of a router, with the names and labels of the Go router.

No label names a sandbox: its cardinality is unbounded. Neither does one have what a client sent: a namespace is shown
once a sandbox was found in it, a method if HTTP defines it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import orjson

from sandpool.api import metrics as api
from sandpool.api.metrics import Metric
from sandpool.engine.metrics.registry import Counter, MetricsRegistry
from sandpool.router.http1 import MalformedMessage

# Those of the Go router, and two below them: most requests here take less than 5 ms.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0)

REQUESTS: Final = Metric(
    "sandbox_router_requests_total", "counter", ("method", "code", "sandbox_namespace"), "Requests answered."
)
DURATION: Final = Metric(
    "sandbox_router_request_duration_seconds",
    "histogram",
    ("method", "code", "sandbox_namespace"),
    "Time from the head of a request to the end of its response.",
    _BUCKETS,
)
INFLIGHT: Final = Metric("sandbox_router_inflight_requests", "gauge", (), "Requests that are in service.")
UPSTREAM_ERRORS: Final = Metric(
    "sandbox_router_upstream_errors_total",
    "counter",
    ("sandbox_namespace", "reason"),
    "Requests that failed because of the sandbox.",
)
UPSTREAM_RETRIES: Final = Metric(
    "sandbox_router_upstream_retries_total",
    "counter",
    ("sandbox_namespace",),
    "Retries of connections that a sandbox refused.",
)
DECISIONS: Final = Metric(
    "sandbox_router_authz_decisions_total", "counter", ("sandbox_namespace", "decision"), "Authorization decisions."
)
BUILD_INFO: Final = Metric(
    "sandbox_router_build_info", "gauge", api.BUILD_INFO.labels, "Always 1; the labels describe the running build."
)

#: The namespace of requests for which no sandbox was found.
_UNKNOWN: Final = "-"
_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})


#: Series of one metric that a router in another process may have.
_MAX_SERIES: Final = 20_000


class RouterMetrics:
    """``inflight`` is the number of requests in service; ``Exchange`` counts it."""

    def __init__(self, metrics: MetricsRegistry) -> None:
        self.inflight = 0
        metrics.collect(INFLIGHT, lambda: {(): self.inflight})
        self._requests = metrics.counter(REQUESTS)
        self._durations = metrics.histogram(DURATION)
        self._errors = metrics.counter(UPSTREAM_ERRORS)
        self._retries = metrics.counter(UPSTREAM_RETRIES)
        self._decisions = metrics.counter(DECISIONS)

    def answered(self, method: bytes, status: int, seconds: float, namespace: str) -> None:
        """Count a response. Here and below, ``namespace`` is that of the sandbox, and empty if none was found: clients
        could name any."""
        labels = (method.decode() if method in _METHODS else "other", str(status), namespace or _UNKNOWN)
        self._requests.add(*labels)
        self._durations.observe(seconds, *labels)

    def failed(self, error: Exception, namespace: str) -> None:
        match error:
            case MalformedMessage():
                reason = "malformed"
            case TimeoutError():
                reason = "timeout"
            case EOFError():
                reason = "eof"
            case OSError():
                reason = "dial"
            case _:
                reason = "other"
        self._errors.add(namespace or _UNKNOWN, reason)

    def retried(self, namespace: str) -> None:
        self._retries.add(namespace or _UNKNOWN)

    def decided(self, allowed: bool, namespace: str = "") -> None:
        self._decisions.add(namespace or _UNKNOWN, "allow" if allowed else "deny")

    # --- to another process -------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Return all values for ``load``."""
        counters = {each.metric.name: list(each.values.items()) for each in self._counters}
        durations = [(labels, counts, total) for labels, (counts, total) in self._durations.series.items()]
        return orjson.dumps({"counters": counters, "durations": durations, "inflight": self.inflight})

    def load(self, data: bytes) -> None:
        """Take over the values of a router in another process, which is not trusted. Raises ``ValueError``."""
        try:
            dump = msgspec.json.decode(data, type=_Dump)
        except msgspec.MsgspecError as error:
            raise ValueError(f"these are not metrics of a router: {error}") from None
        if max(len(dump.durations), *map(len, dump.counters.values()), 0) > _MAX_SERIES:
            raise ValueError(f"a metric of the router has more than {_MAX_SERIES} series")
        counters = {each: dict(dump.counters.get(each.metric.name, ())) for each in self._counters}
        durations = {labels: (counts, total) for labels, counts, total in dump.durations}
        if not all(len(labels) == len(each.metric.labels) for each, values in counters.items() for labels in values):
            raise ValueError("a counter of the router has other labels")
        if not all(len(labels) == len(DURATION.labels) for labels in durations):
            raise ValueError("the histogram of the router has other labels")
        if not all(len(counts) == len(_BUCKETS) + 1 for counts, _ in durations.values()):
            raise ValueError("the histogram of the router has other buckets")
        for counter, values in counters.items():
            counter.replace(values)
        self._durations.replace(durations)
        self.inflight = dump.inflight

    @property
    def _counters(self) -> tuple[Counter, ...]:
        return (self._requests, self._errors, self._retries, self._decisions)


_Label = Annotated[str, msgspec.Meta(max_length=253)]
_Labels = tuple[_Label, ...]
_Number = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class _Dump(msgspec.Struct):
    counters: dict[str, list[tuple[_Labels, _Number]]]
    durations: list[tuple[_Labels, list[_Count], _Number]]
    inflight: _Count = 0
