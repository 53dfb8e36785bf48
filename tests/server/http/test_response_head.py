"""Response heads."""

from __future__ import annotations

from datetime import UTC, datetime

from sandpool.kube.errors import ApiError
from sandpool.server.http import response_head
from sandpool.server.http.response_head import HeadCache


def test_date_is_updated() -> None:
    cache = HeadCache()
    cache.set_date(datetime(2026, 11, 16, 7, 0, 0, tzinfo=UTC))
    first = cache.prefix(200, "application/json")
    assert cache.prefix(200, "application/json") is first
    assert b"Date: Mon, 16 Nov 2026 07:00:00 GMT\r\n" in first
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    cache.set_date(datetime(2026, 11, 16, 7, 0, 1, tzinfo=UTC))
    assert b"07:00:01" in cache.prefix(200, "application/json")


def test_unusual_status_codes_have_a_reason() -> None:
    assert HeadCache().prefix(599, "a/b").startswith(b"HTTP/1.1 599 Unknown\r\n")


def test_header_injection_is_dropped() -> None:
    assert response_head.lines([("A", "1"), ("B", "2\r\nC: 3"), ("D", "ä€")]) == b"A: 1\r\nD: \xe4?\r\n"


def test_failures_have_retry_after() -> None:
    response = response_head.failure(ApiError("later", code=429, details={"retryAfterSeconds": 2}))
    assert (response.status, response.headers) == (429, [("Retry-After", "2")])
    assert response_head.failure(ApiError("no")).headers == []
