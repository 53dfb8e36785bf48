"""Metrics of a router. No label names a sandbox: its cardinality is unbounded."""

from __future__ import annotations

from typing import Final

from sandpool.api.metrics import Metric
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.http1 import MalformedMessage

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
UPSTREAM_ERRORS: Final = Metric(
    "sandbox_router_upstream_errors_total", "counter", ("reason",), "Requests that failed because of the sandbox."
)
UPSTREAM_RETRIES: Final = Metric(
    "sandbox_router_upstream_retries_total", "counter", (), "Retries of connections that a sandbox refused."
)
DECISIONS: Final = Metric("sandbox_router_authz_decisions_total", "counter", ("decision",), "Authorization decisions.")

_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})


class RouterMetrics:
    def __init__(self, metrics: MetricsRegistry) -> None:
        self._requests = metrics.counter(REQUESTS)
        self._durations = metrics.histogram(DURATION)
        self._errors = metrics.counter(UPSTREAM_ERRORS)
        self._retries = metrics.counter(UPSTREAM_RETRIES)
        self._decisions = metrics.counter(DECISIONS)

    def answered(self, method: bytes, status: int, seconds: float, namespace: str) -> None:
        """``namespace`` is empty for requests that were not forwarded: clients could name any."""
        labels = (method.decode() if method in _METHODS else "other", str(status), namespace)
        self._requests.add(*labels)
        self._durations.observe(seconds, *labels)

    def failed(self, error: Exception) -> None:
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
        self._errors.add(reason)

    def retried(self) -> None:
        self._retries.add()

    def decided(self, allowed: bool) -> None:
        self._decisions.add("allow" if allowed else "deny")
