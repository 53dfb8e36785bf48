"""The measured transport counts requests by response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.transports import MeasuredTransport
from sandpool.kube.errors import ApiError, Conflict, Expired
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.testing.clock import ManualClock

GET = Request("GET", "/a")


class Api:
    """Answers after two seconds, with a failure if there is one; streams ``events`` before that."""

    def __init__(self, clock: ManualClock, failure: Exception | None = None, events: int = 0) -> None:
        self.clock = clock
        self.failure = failure
        self.events = events
        self.released = False

    async def request(self, request: Request) -> Any:
        await self.clock.sleep(2)
        if self.failure is not None:
            raise self.failure
        return {"path": request.path}

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        try:
            for _ in range(self.events):
                yield WatchEvent("ADDED", {})
            if self.failure is not None:
                raise self.failure
        finally:
            self.released = True

    async def close(self) -> None:
        self.released = True


async def counted(metrics: MetricsRegistry) -> dict[tuple[str, str], float]:
    text, _ = await metrics.render()
    found = {}
    for line in text.decode().splitlines():
        if line.startswith("rest_client_requests_total{"):
            parts = line.split('"')
            found[parts[1], parts[5]] = float(line.split()[-1])
            assert parts[3] == "api:6443"
    return found


async def ask(transport: Transport, clock: ManualClock, request: Request) -> Any:
    asking = asyncio.create_task(transport.request(request))
    await clock.advance(2)
    return await asking


@pytest.mark.parametrize(
    ("method", "failure", "code"),
    [
        ("GET", None, "200"),
        ("POST", None, "201"),
        ("PATCH", Conflict("no"), "409"),
        ("GET", ConnectionError("gone"), "<error>"),
        ("DELETE", TimeoutError("late"), "<error>"),
    ],
)
async def test_request_is_counted_by_code_and_method(method: str, failure: Exception | None, code: str) -> None:
    metrics, clock = MetricsRegistry(), ManualClock()
    transport = MeasuredTransport(Api(clock, failure), metrics, clock, "api:6443")
    with suppress(ApiError, OSError):
        assert await ask(transport, clock, Request(method, "/a")) == {"path": "/a"}
        assert failure is None
    assert await counted(metrics) == {(code, method): 1}
    text, _ = await metrics.render()
    assert f'rest_client_request_duration_seconds_sum{{host="api:6443",verb="{method}"}} 2.0' in text.decode()


async def test_cancelled_request_is_not_counted() -> None:
    metrics, clock = MetricsRegistry(), ManualClock()
    transport = MeasuredTransport(Api(clock), metrics, clock, "api:6443")
    asking = asyncio.create_task(transport.request(GET))
    await clock.advance(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await counted(metrics) == {}


@pytest.mark.parametrize(
    ("events", "failure", "code"),
    [(0, None, "200"), (3, None, "200"), (0, Expired("old"), "410"), (3, Expired("old"), "200")],
)
async def test_watch_counts_as_one_request(events: int, failure: Exception | None, code: str) -> None:
    metrics, clock = MetricsRegistry(), ManualClock()
    transport = MeasuredTransport(Api(clock, failure, events), metrics, clock, "api:6443")
    seen = 0
    with suppress(ApiError):
        async for _ in transport.stream(GET):
            seen += 1
        assert failure is None
    assert seen == events
    assert await counted(metrics) == {(code, "GET"): 1}


async def test_closed_watch_releases_the_connection() -> None:
    api = Api(ManualClock(), events=3)
    stream: Any = MeasuredTransport(api, MetricsRegistry(), api.clock, "api:6443").stream(GET)
    await anext(stream)
    assert not api.released
    await stream.aclose()
    assert api.released


async def test_close_closes_the_wrapped_transport() -> None:
    api = Api(ManualClock())
    await MeasuredTransport(api, MetricsRegistry(), api.clock, "api:6443").close()
    assert api.released
