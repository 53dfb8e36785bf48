from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.controllers.warmpool.bucket import Bucket, Grant, take

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def test_edge_30_no_limit_keeps_nothing(scene: Scene) -> None:
    assert take(Bucket(0, scene.now), 300, 0, scene.now) == Grant(300, None)


def test_it_starts_full_and_holds_one_second(scene: Scene) -> None:
    assert take(None, 300, 10, scene.now) == Grant(10, Bucket(0, scene.now))
    assert take(None, 4, 10, scene.now) == Grant(4, Bucket(6, scene.now))


def test_tokens_come_back_with_time(scene: Scene) -> None:
    bucket = Bucket(0, scene.now)
    assert take(bucket, 300, 10, scene.at(0.5)).count == 5
    assert take(bucket, 300, 10, scene.at(60)).count == 10


def test_an_empty_bucket_says_when_to_come_back(scene: Scene) -> None:
    assert take(Bucket(0.5, scene.now), 3, 2, scene.now) == Grant(0, Bucket(0.5, scene.now), 0.25)


def test_edge_30_a_fractional_rate_holds_one(scene: Scene) -> None:
    grant = take(None, 3, 0.1, scene.now)
    assert grant == Grant(1, Bucket(0, scene.now))
    assert take(grant.bucket, 2, 0.1, scene.now).wait == 10
    assert take(grant.bucket, 2, 0.1, scene.at(1000)).count == 1


@pytest.mark.parametrize("rate", [1e18, 1e300, 1.7e308])
def test_edge_30_huge_rates_do_not_overflow(scene: Scene, rate: float) -> None:
    assert take(Bucket(0, scene.now), 300, rate, scene.at(10**6)).count == 300


def test_a_clock_set_back_takes_no_tokens(scene: Scene) -> None:
    assert take(Bucket(3, scene.now), 300, 10, scene.at(-3600)).count == 3


@given(rate=st.floats(0.01, 500), steps=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=30))
def test_never_faster_than_the_rate(rate: float, steps: list[tuple[float, int]]) -> None:
    bucket: Bucket | None = None
    start = now = datetime.fromisoformat("2026-11-01T12:00:00Z")
    created = 0
    for elapsed, wanted in steps:
        now += timedelta(seconds=elapsed)
        grant = take(bucket, wanted, rate, now)
        created += grant.count
        assert created <= max(1, rate) + rate * (now - start).total_seconds() + 1e-6
        if grant.wait is not None:  # having waited, there is one
            assert take(grant.bucket, wanted, rate, now + timedelta(seconds=grant.wait + 1e-6)).count >= 1
        bucket = grant.bucket
