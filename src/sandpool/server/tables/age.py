"""Timestamps as the short durations of tables."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

UNKNOWN = "<unknown>"
INVALID = "<invalid>"

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def parse_time(text: str) -> datetime | None:
    """Parse an RFC 3339 timestamp; None if the text is not one. (``fromisoformat`` alone accepts much more.)"""
    if not _RFC3339.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def age(timestamp: str | None, now: datetime) -> str:
    """The time since a timestamp; ``<unknown>`` where there is none."""
    if not timestamp:
        return UNKNOWN
    then = parse_time(timestamp)
    return INVALID if then is None else short_duration(now - then)


def short_duration(duration: timedelta) -> str:
    """Format a duration with at most two units: 95s, 4m30s, 12m, 3h5m, 30h, 3d4h, 40d, 2y35d.

    Up to one second in the future counts as now, because clocks differ; more is invalid.
    """
    seconds = int(duration.total_seconds())
    if seconds < -1:
        return INVALID
    if seconds < 2 * 60:
        return f"{max(seconds, 0)}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return _pair(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _pair(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
