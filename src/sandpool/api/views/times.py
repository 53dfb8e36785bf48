"""Parsing of API timestamps."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(256)  # objects that were written in the same second have the same times
def parse_time(text: str | None) -> datetime | None:
    """Parse an RFC 3339 time to UTC. None if it is absent or malformed.

    The API has checked the format of every time it holds, so the latter takes a moment that RFC 3339 has and Python has
    not, a leap second for instance. One such object must not stop the watch that brings all the others.
    """
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
