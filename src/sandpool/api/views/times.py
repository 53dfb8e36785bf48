"""Moments of the API as moments of Python."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time, in UTC. None if there is none, or none that can be read.

    The API has checked the format of every time it holds, so the latter takes a moment that RFC 3339 has and Python has
    not, a leap second for instance. One such object must not stop the watch that brings all the others.
    """
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
