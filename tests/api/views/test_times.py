from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandpool.api.views.times import parse_time


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02t03:04:05z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
    ],
)
def test_times_are_read_in_utc(text: str, moment: datetime) -> None:
    parsed = parse_time(text)
    assert parsed == moment
    assert parsed.tzinfo is UTC


@pytest.mark.parametrize("text", [None, "", "2026-06-30T23:59:60Z", "9999-12-31T23:59:59-10:00"])
def test_invalid_time_is_none(text: str | None) -> None:
    assert parse_time(text) is None
