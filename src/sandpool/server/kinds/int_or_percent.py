"""Counts of pods that may also be percentages (IntOrString)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, invalid

_PERCENT: Final = re.compile("[0-9]+%")
_NUMBER: Final = re.compile("[+-]?[0-9]+")
_LONGEST: Final = 100
_RULE: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)


def _amount(value: Any) -> int:
    """The number in a value, 0 if there is none. Very long numbers are cut off: only "more than 100" matters."""
    if not isinstance(value, str):
        return int(value)
    digits = value.removesuffix("%") if _PERCENT.fullmatch(value) else value
    return int(digits[:_LONGEST]) if _NUMBER.fullmatch(digits) else 0


def is_zero(value: Any) -> bool:
    return _amount(value) == 0


def validate_int_or_percent(value: Any, path: str, *, whole: bool = True) -> Iterator[Cause]:
    """Validate a count or percentage. ``whole``: it may not exceed 100 %."""
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            yield invalid(path, value, _RULE)
        elif whole and _amount(value) > 100:
            yield invalid(path, value, "must not be greater than 100%")
    elif value < 0:
        yield invalid(path, value, "must be greater than or equal to 0")
