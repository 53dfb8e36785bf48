"""Timestamps in the formats of the API, always in UTC; and durations as users write them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|µs|ns|m|s)")


def timestamp(moment: datetime) -> str:
    """RFC 3339 with whole seconds, the form of ``metav1.Time``."""
    return moment.isoformat(timespec="seconds")[:19] + "Z"  # half the cost of strftime


def micro_timestamp(moment: datetime) -> str:
    """RFC 3339 with microseconds, the form of ``metav1.MicroTime``."""
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def parse_seconds(text: str) -> float | None:
    """Parse a duration. Only 0 may lack a unit."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
