from __future__ import annotations

from datetime import UTC, datetime

from sandpool.api.times import micro_timestamp, timestamp

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 99999, tzinfo=UTC)


def test_times_are_written_in_seconds() -> None:
    assert timestamp(MOMENT) == "2026-01-02T03:04:05Z"


def test_micro_times_are_written_in_microseconds() -> None:
    assert micro_timestamp(MOMENT) == "2026-01-02T03:04:05.099999Z"
