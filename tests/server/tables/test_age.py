from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.server.tables.age import age, parse_time, short_duration

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400
NOW = datetime(2026, 11, 16, 8, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2.5, "<invalid>"),
        (-1.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (2 * MINUTE + 5, "2m5s"),
        (10 * MINUTE - 1, "9m59s"),
        (10 * MINUTE + 30, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 5 * MINUTE, "3h5m"),
        (8 * HOUR + 59 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (48 * HOUR, "2d"),
        (3 * DAY + 4 * HOUR, "3d4h"),
        (8 * DAY + 4 * HOUR, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR + 35 * DAY, "2y35d"),
        (3 * YEAR, "3y"),
        (8 * YEAR + 100 * DAY, "8y"),
    ],
)
def test_durations_are_shortened_as_in_kubernetes(seconds: float, text: str) -> None:
    assert short_duration(timedelta(seconds=seconds)) == text


def test_age_is_counted_from_a_timestamp() -> None:
    assert age("2026-11-16T07:59:30Z", NOW) == "30s"
    assert age("2026-11-16T09:59:30.123456+02:00", NOW) == "29s"
    assert age(None, NOW) == age("", NOW) == "<unknown>"
    assert age("yesterday", NOW) == "<invalid>"


@pytest.mark.parametrize("text", ["2026-11-16", "20261116T080000Z", "2026-11-16T08:00:00", "2026-13-16T08:00:00Z", "٢"])
def test_only_rfc_3339_is_a_timestamp(text: str) -> None:
    assert parse_time(text) is None


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=100 * YEAR))
def test_duration_has_at_most_two_units(seconds: int) -> None:
    text = short_duration(timedelta(seconds=seconds))
    assert sum(char.isalpha() for char in text) <= 2
