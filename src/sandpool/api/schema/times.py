"""Timestamps as a Go API server reads and writes them: RFC 3339 in, UTC out, to the second or the microsecond."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache
from typing import Final

from sandpool.api.causes import quoted
from sandpool.api.schema.findings import Undecodable

# The form that is stored.
_SECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)
_MICROSECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}Z", re.ASCII)
_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT: Final = "2006-01-02T15:04:05.000000Z07:00"
# Each element of a layout with what it accepts; a fraction of a second may follow the seconds even if the layout has
# none, and must have exactly six digits if it has.
_ELEMENTS: Final = tuple(
    (element, re.compile(pattern, re.ASCII))
    for element, pattern in (
        ("2006", r"\d{4}"),
        ("-", "-"),
        ("01", r"\d\d"),
        ("-", "-"),
        ("02", r"\d\d"),
        ("T", "T"),
        ("15", r"\d\d"),
        (":", ":"),
        ("04", r"\d\d"),
        (":", ":"),
        ("05", r"\d\d"),
    )
)
_LONGEST: Final = 256
_FRACTION: Final = re.compile(r"[.,]\d+", re.ASCII)
_SIX_DIGITS: Final = re.compile(r"[.,]\d{6}", re.ASCII)
_ZONE: Final = re.compile(r"Z|[+-]\d\d:\d\d", re.ASCII)
_RANGES: Final = (("month", 1, 12), ("day", 1, 31), ("hour", 0, 23), ("minute", 0, 59), ("second", 0, 59))


@lru_cache(maxsize=1024)
def read_time(text: str) -> str:
    """A ``metav1.Time`` as it is stored: in UTC, without fractions. Raises Undecodable in Go's words."""
    return _read(text, _SECONDS, _LAYOUT, "seconds")


@lru_cache(maxsize=1024)
def read_micro_time(text: str) -> str:
    """A ``metav1.MicroTime`` as it is stored: in UTC, with six digits. Raises Undecodable in Go's words."""
    return _read(text, _MICROSECONDS, _MICRO_LAYOUT, "microseconds")


def _read(text: str, canonical: re.Pattern[str], layout: str, precision: str) -> str:
    if len(text) > _LONGEST:  # never a time, and results are cached by their text
        raise Undecodable(f"parsing time {quoted(text[:_LONGEST])}: text too long")
    if canonical.fullmatch(text) and _is_date(text[:10]):
        return text
    fields, offset = _parse(text, layout)
    try:
        moment = datetime.datetime(*fields, tzinfo=datetime.UTC) - datetime.timedelta(minutes=offset)
    except ValueError:
        raise Undecodable(f"parsing time {quoted(text)}: day out of range") from None
    except OverflowError:
        raise Undecodable(f"parsing time {quoted(text)}: year out of range") from None
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


@lru_cache(maxsize=64)
def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _parse(text: str, layout: str) -> tuple[tuple[int, int, int, int, int, int, int], int]:
    """Year to second and microseconds, and the offset of the zone in minutes."""
    rest = text
    numbers: list[int] = []

    def take(element: str, pattern: re.Pattern[str]) -> str:
        nonlocal rest
        match = pattern.match(rest)
        if match is None:
            raise Undecodable(
                f"parsing time {quoted(text)} as {quoted(layout)}: cannot parse {quoted(rest)} as {quoted(element)}"
            )
        rest = rest[match.end() :]
        return match[0]

    for element, pattern in _ELEMENTS:
        taken = take(element, pattern)
        if element.isdigit():
            numbers.append(int(taken))
    for (name, low, high), number in zip(_RANGES, numbers[1:], strict=True):
        if not low <= number <= high:
            raise Undecodable(f"parsing time {quoted(text)}: {name} out of range")
    fraction = ""
    if layout is _MICRO_LAYOUT:
        fraction = take(".000000", _SIX_DIGITS)
    elif match := _FRACTION.match(rest):
        fraction = match[0]
        rest = rest[match.end() :]
    zone = take("Z07:00", _ZONE)
    if rest:
        raise Undecodable(f"parsing time {quoted(text)}: extra text: {quoted(rest)}")
    year, month, day, hour, minute, second = numbers
    fields = (year, month, day, hour, minute, second, int(fraction[1:7].ljust(6, "0")))
    if zone == "Z":
        return fields, 0
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 24 or minutes > 60:
        unit = "hour" if hours > 24 else "minute"
        raise Undecodable(f"parsing time {quoted(text)}: time zone offset {unit} out of range")
    return fields, (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
