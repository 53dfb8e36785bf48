"""Validation of ``metav1.Condition`` lists in a status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, duplicate, invalid, not_supported, required, too_long
from sandpool.api.resource import Object
from sandpool.server import names

_STATUSES: Final = ("False", "True", "Unknown")
_LONGEST_REASON: Final = 1024
_LONGEST_MESSAGE: Final = 32 * 1024
_REASON: Final = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
_REASON_RULE: Final = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
    f"'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '{_REASON}')"
)
_is_reason = re.compile(_REASON).fullmatch


def validate_conditions(conditions: list[Object], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        kind = condition.get("type") or ""
        if kind in seen:
            yield duplicate(f"{path}[{index}].type", kind)
        seen.add(kind)
        yield from _validate_condition(condition, f"{path}[{index}]")


def _validate_condition(condition: Object, path: str) -> Iterator[Cause]:
    kind, status, reason = (condition.get(field) or "" for field in ("type", "status", "reason"))
    yield from (invalid(f"{path}.type", kind, why) for why in names.qualified_name(kind))
    if status not in _STATUSES:
        yield not_supported(f"{path}.status", status, _STATUSES)
    generation = condition.get("observedGeneration") or 0
    if generation < 0:
        yield invalid(f"{path}.observedGeneration", generation, "must be greater than or equal to zero")
    if not condition.get("lastTransitionTime"):
        yield required(f"{path}.lastTransitionTime")
    if not reason:
        yield required(f"{path}.reason")
    elif not _is_reason(reason):
        yield invalid(f"{path}.reason", reason, _REASON_RULE)
    for field, text, limit in (
        ("reason", reason, _LONGEST_REASON),
        ("message", condition.get("message") or "", _LONGEST_MESSAGE),
    ):
        if len(text.encode()) > limit:
            yield too_long(f"{path}.{field}", limit)
