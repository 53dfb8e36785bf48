"""Timestamps in the formats of the API, always in UTC."""

from __future__ import annotations

from datetime import datetime


def timestamp(moment: datetime) -> str:
    """RFC 3339 with whole seconds, the form of ``metav1.Time``."""
    return moment.isoformat(timespec="seconds")[:19] + "Z"  # half the cost of strftime


def micro_timestamp(moment: datetime) -> str:
    """RFC 3339 with microseconds, the form of ``metav1.MicroTime``."""
    return moment.isoformat(timespec="microseconds")[:26] + "Z"
