"""A transport that counts requests and how they were answered, under the names everybody knows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final, cast

from sandpool.api.metrics import Metric
from sandpool.engine.clock import Clock
from sandpool.engine.metrics import Metrics
from sandpool.kube.errors import ApiError
from sandpool.kube.transport import Request, Transport, WatchEvent

# Of client-go; dashboards and alerts of many projects are built on them.
REQUESTS: Final = Metric(
    "rest_client_requests_total", "counter", ("code", "method", "host"), "Requests to the API, by answer."
)
REQUEST_TIME: Final = Metric(
    "rest_client_request_duration_seconds",
    "histogram",
    ("verb", "host"),
    "How long requests to the API took, watches excepted.",
    (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0),
)


class MeasuredTransport:
    """``host`` is the API server's name in the metrics."""

    def __init__(self, transport: Transport, metrics: Metrics, clock: Clock, host: str) -> None:
        self.transport = transport
        self.clock = clock
        self.host = host
        self._requests = metrics.count(REQUESTS)
        self._time = metrics.distribution(REQUEST_TIME)

    async def request(self, request: Request) -> Any:
        sent = self.clock.monotonic()
        try:
            answer = await self.transport.request(request)
        except (ApiError, OSError) as error:
            self._answered(request, _bad(error), sent)
            raise
        self._answered(request, _good(request), sent)
        return answer

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        # A watch counts as answered when its first event is there, or its end: nothing that was refused gets so far.
        counted = False
        async with aclosing(cast(AsyncGenerator[WatchEvent, None], self.transport.stream(request))) as events:
            try:
                async for event in events:
                    if not counted:
                        counted = True
                        self._requests.add(_good(request), request.method, self.host)
                    yield event
            except (ApiError, OSError) as error:
                if not counted:
                    counted = True
                    self._requests.add(_bad(error), request.method, self.host)
                raise
        if not counted:
            self._requests.add(_good(request), request.method, self.host)

    def _answered(self, request: Request, code: str, sent: float) -> None:
        self._requests.add(code, request.method, self.host)
        self._time.observe(self.clock.monotonic() - sent, request.method, self.host)

    async def close(self) -> None:
        await self.transport.close()


def _good(request: Request) -> str:
    """Transports do not say which good answer it was, but the API creates with 201 and does the rest with 200."""
    return "201" if request.method == "POST" else "200"


def _bad(error: Exception) -> str:
    return str(error.code) if isinstance(error, ApiError) else "<error>"
