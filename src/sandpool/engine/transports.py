"""Transports around a transport: measured, throttled, fenced by the leader lease, and for background work.

The order matters where two are combined. ``ThrottledTransport`` goes outside ``FencedTransport``: a write that had to
wait for its permit is checked against the lease when it is sent and not when it was requested.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final, cast

from sandpool.api.metrics import Metric
from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import Clock
from sandpool.engine.leaderelection import LeaseLost
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import RateLimiter
from sandpool.kube.errors import ApiError
from sandpool.kube.transport import Request, Transport, WatchEvent

# Names, labels and buckets of client-go as controller-runtime exports them.
REQUESTS: Final = Metric(
    "rest_client_requests_total", "counter", ("code", "method", "host"), "API requests, by status code."
)
REQUEST_TIME: Final = Metric(
    "rest_client_request_duration_seconds",
    "histogram",
    ("verb", "host"),
    "Duration of API requests, without watches.",
    (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0),
)


class MeasuredTransport:
    """Counts requests by status code and measures their duration. ``host`` names the API server in the metrics."""

    def __init__(self, transport: Transport, metrics: MetricsRegistry, clock: Clock, host: str) -> None:
        self.transport = transport
        self.clock = clock
        self.host = host
        self._requests = metrics.counter(REQUESTS)
        self._time = metrics.histogram(REQUEST_TIME)

    async def request(self, request: Request) -> Any:
        sent = self.clock.monotonic()
        try:
            response = await self.transport.request(request)
        except (ApiError, OSError) as error:
            self._answered(request, _error_code(error), sent)
            raise
        self._answered(request, _success_code(request), sent)
        return response

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        # A watch counts as answered at its first event or at its end: a refused watch reaches neither.
        counted = False
        async with aclosing(cast(AsyncGenerator[WatchEvent, None], self.transport.stream(request))) as events:
            try:
                async for event in events:
                    if not counted:
                        counted = True
                        self._requests.add(_success_code(request), request.method, self.host)
                    yield event
            except (ApiError, OSError) as error:
                if not counted:
                    counted = True
                    self._requests.add(_error_code(error), request.method, self.host)
                raise
        if not counted:
            self._requests.add(_success_code(request), request.method, self.host)

    def _answered(self, request: Request, code: str, sent: float) -> None:
        self._requests.add(code, request.method, self.host)
        self._time.observe(self.clock.monotonic() - sent, request.method, self.host)

    async def close(self) -> None:
        await self.transport.close()


def _success_code(request: Request) -> str:
    """Status code of a success. Transports do not report it; the API answers a POST with 201 and the rest with 200."""
    return "201" if request.method == "POST" else "200"


def _error_code(error: Exception) -> str:
    return str(error.code) if isinstance(error, ApiError) else "<error>"


class ThrottledTransport:
    """Sends requests and opens watches at the rate of a limiter, in arrival order."""

    def __init__(self, transport: Transport, limiter: RateLimiter) -> None:
        self.transport = transport
        self.limiter = limiter

    async def request(self, request: Request) -> Any:
        await self.limiter.wait()
        return await self.transport.request(request)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        await self.limiter.wait()
        async with aclosing(cast(AsyncGenerator[WatchEvent, None], self.transport.stream(request))) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        await self.transport.close()


class FencedTransport:
    """Sends writes only while ``held`` returns True and raises ``LeaseLost`` otherwise; reads always pass.

    Losing the leader lease cancels the work. But a process that was frozen (a suspended machine, a starved container)
    resumes in the middle of its work and would keep writing until the event loop delivers the cancellation. So every
    write checks the clock first. A write that is in flight when the renew deadline passes cannot be recalled; the lease
    outlasts the deadline by some seconds to cover that.
    """

    def __init__(self, transport: Transport, held: Callable[[], bool]) -> None:
        self.transport = transport
        self.held = held

    async def request(self, request: Request) -> Any:
        if request.method != "GET" and not self.held():
            raise LeaseLost(f"did not send {request.method} {request.path}: the leader lease is not held")
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        await self.transport.close()


class BackgroundTransport:
    """Sends each request when the background gate admits it. Watches open at once."""

    def __init__(self, transport: Transport, gate: BackgroundGate) -> None:
        self.transport = transport
        self.gate = gate

    async def request(self, request: Request) -> Any:
        await self.gate.wait()
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        await self.transport.close()
