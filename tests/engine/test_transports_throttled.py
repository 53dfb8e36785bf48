"""The throttled transport limits requests per second, in order, with bursts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpool.engine.leaderelection import LeaseLost
from sandpool.engine.ratelimit import RateLimiter
from sandpool.engine.transports import FencedTransport, ThrottledTransport
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock


class Log:
    """A transport that notes when it was asked for what."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked: list[tuple[float, str]] = []
        self.closed = False

    async def request(self, request: Request) -> Any:
        self.asked.append((self.clock.monotonic(), request.path))

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        self.asked.append((self.clock.monotonic(), request.path))
        yield WatchEvent("BOOKMARK", {})

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_burst_is_sent_at_once_and_the_rest_in_order(clock: ManualClock) -> None:
    log = Log(clock)
    transport = ThrottledTransport(log, RateLimiter(2, 3, clock))
    asking = [asyncio.create_task(transport.request(Request("GET", str(number)))) for number in range(6)]
    await clock.advance(10)
    await asyncio.gather(*asking)
    assert log.asked == [(0, "0"), (0, "1"), (0, "2"), (0.5, "3"), (1.0, "4"), (1.5, "5")]


async def test_pause_refills_the_burst_and_no_more(clock: ManualClock) -> None:
    log = Log(clock)
    transport = ThrottledTransport(log, RateLimiter(2, 2, clock))
    for _ in range(2):
        await transport.request(Request("GET", "before"))
    await clock.advance(100)
    asking = [asyncio.create_task(transport.request(Request("GET", "after"))) for _ in range(3)]
    await clock.advance(10)
    await asyncio.gather(*asking)
    assert [when for when, what in log.asked if what == "after"] == [100, 100, 100.5]


async def test_watches_count_and_transports_share_one_limiter(clock: ManualClock) -> None:
    log, rate = Log(clock), RateLimiter(1, 1, clock)
    await ThrottledTransport(log, rate).request(Request("GET", "a"))

    async def watch() -> list[WatchEvent]:
        return [event async for event in ThrottledTransport(log, rate).stream(Request("GET", "b"))]

    watching = asyncio.create_task(watch())
    await clock.advance(5)
    assert [event.type for event in await watching] == ["BOOKMARK"]
    assert log.asked == [(0, "a"), (1, "b")]


async def test_fence_is_checked_when_the_throttled_write_is_sent(clock: ManualClock) -> None:
    log, held = Log(clock), True
    transport = ThrottledTransport(FencedTransport(log, lambda: held), RateLimiter(1, 1, clock))
    await transport.request(Request("POST", "first"))
    waiting = asyncio.create_task(transport.request(Request("POST", "second")))
    await clock.settle()
    held = False
    await clock.advance(1)
    with pytest.raises(LeaseLost):
        await waiting
    assert log.asked == [(0, "first")]


async def test_close_closes_the_wrapped_transport(clock: ManualClock) -> None:
    log = Log(clock)
    await ThrottledTransport(log, RateLimiter(1, 1, clock)).close()
    assert log.closed


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_limiter_rejects_a_rate_that_is_not_positive(clock: ManualClock, per_second: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        RateLimiter(per_second, burst, clock)
