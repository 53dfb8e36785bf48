from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sandpool.controllers.sandbox.deferral import time_left, write_behind_window

START = datetime(2026, 1, 2, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("since", "at", "left"), [(None, 0, 3), (START, 0, 3), (START, 1, 2), (START, 3, 0), (START, 9, 0)]
)
def test_a_write_waits_from_when_it_was_first_needed(since: datetime | None, at: float, left: float) -> None:
    assert time_left(since, seconds(3), START + seconds(at)) == seconds(left)


def test_without_a_window_nothing_waits() -> None:
    assert time_left(None, seconds(0), START) == seconds(0)


@pytest.mark.parametrize(("asked_for", "granted"), [(0, 0), (0.5, 0.5), (1, 1), (60, 1)])
def test_edge_18_the_window_of_pods_is_at_most_a_second(asked_for: float, granted: float) -> None:
    assert write_behind_window(seconds(asked_for)) == seconds(granted)
