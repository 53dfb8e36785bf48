"""When a request is retried, and after which delay."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandpool.kube.errors import ApiError, TooManyRequests
from sandpool.kube.retry import Retry, backoff_delay, retry_after
from tests.support.fixed_random import FixedRandom

NOW = datetime(2026, 11, 16, 8, 0, 0, tzinfo=UTC)


def error(code: int, seconds: int | None = None) -> ApiError:
    return ApiError("no", code=code, details={} if seconds is None else {"retryAfterSeconds": seconds})


@pytest.mark.parametrize(
    ("header", "seconds", "expected"),
    [
        ("", None, None),
        ("", 3, 3.0),
        ("5", 3, 5.0),
        (" 5 ", None, 5.0),
        ("Mon, 16 Nov 2026 08:00:10 GMT", None, 10.0),
        ("Mon, 16 Nov 2026 07:00:00 GMT", None, 0.0),
        ("Mon, 16 Nov 2026 08:00:10 -0000", None, 10.0),
        ("soon", 3, 3.0),
        ("-5", None, None),
    ],
)
def test_retry_after_comes_from_the_header_or_the_status(
    header: str, seconds: int | None, expected: float | None
) -> None:
    headers = {"retry-after": header} if header else {}
    assert retry_after(error(429, seconds), headers, NOW) == expected


def test_delays_double_up_to_the_limit() -> None:
    retry = Retry(attempts=10, first=1.0, longest=5.0, rng=FixedRandom(1.0))
    assert [retry.delay("GET", error(500), {}, n) for n in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_delays_are_jittered() -> None:
    low, high = (Retry(rng=FixedRandom(value)) for value in (0.0, 1.0))
    assert (low.delay("GET", error(500), {}, 1), high.delay("GET", error(500), {}, 1)) == (0.05, 0.1)
    assert low.delay("GET", error(429, 10), {}, 1) == 10.0
    assert high.delay("GET", error(429, 10), {}, 1) == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("method", "code", "seconds", "again"),
    [
        ("GET", 429, None, True),
        ("GET", 500, None, True),
        ("GET", 503, None, True),
        ("GET", 504, None, True),
        ("GET", 404, 1, False),
        ("GET", 409, None, False),
        ("PATCH", 429, 1, True),
        ("POST", 503, 1, True),
        ("DELETE", 429, None, False),
        ("POST", 500, 1, False),
        ("POST", 504, 1, False),
        ("GET", 429, 31, False),
    ],
)
def test_retry_depends_on_method_and_error(method: str, code: int, seconds: int | None, again: bool) -> None:
    assert (Retry().delay(method, error(code, seconds), {}, 1) is not None) is again


def test_retries_are_limited() -> None:
    retry = Retry(attempts=3)
    assert [retry.delay("GET", TooManyRequests("no"), {}, n) is None for n in (1, 2, 3)] == [False, False, True]


def test_pause_doubles_with_every_failure_up_to_the_longest() -> None:
    assert [backoff_delay(failures, first=0.5, longest=3.0) for failures in range(1, 6)] == [0.5, 1, 2, 3, 3]
    assert backoff_delay(10**6, first=0.5, longest=3.0) == 3.0
