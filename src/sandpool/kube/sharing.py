"""Comparison of JSON values, and structural sharing of their equal parts.

Objects are immutable by convention: a change builds new containers along the changed path and shares the rest. Sharing
makes ``new is old`` a valid and cheap test for "unchanged".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON. Python's ``==`` differs: ``1 == True == 1.0``."""
    if a is b:
        return True
    kind = type(a)
    # ``==`` runs in C and finds almost every difference; the walk only distinguishes 1 from true.
    if kind is not type(b) or a != b:
        return False
    return (kind is not dict and kind is not list) or _same_types(a, b)


def _same_types(a: Any, b: Any) -> bool:
    """Whether two objects or two lists that are ``==`` also have the same JSON types inside."""
    pairs: Iterable[tuple[Any, Any]] = zip(a, b, strict=True)
    if type(a) is dict:
        pairs = zip(a.values(), map(b.__getitem__, a), strict=True)
    for x, y in pairs:
        if x is y:
            continue
        kind = type(x)
        if kind is not type(y):
            return False
        if (kind is dict or kind is list) and not _same_types(x, y):
            return False
    return True


def shared(old: Any, new: Any) -> Any:
    """Return ``new`` with every equal part taken from ``old``; ``old`` itself if nothing differs."""
    if isinstance(new, dict) and isinstance(old, dict):
        result = new
        unchanged = len(old) == len(new)
        for key, value in new.items():
            before = old.get(key)
            part = value if before is None else shared(before, value)
            if part is not before or (before is None and key not in old):
                unchanged = False
            if part is not value:
                result = dict(new) if result is new else result
                result[key] = part
        return old if unchanged else result
    if isinstance(new, list) and isinstance(old, list):
        items = [shared(a, b) for a, b in zip(old, new, strict=False)]
        if len(items) == len(old) == len(new) and all(a is b for a, b in zip(old, items, strict=True)):
            return old
        return items + new[len(items) :]
    return old if same(old, new) else new


def without_nulls(value: Any) -> Any:
    """Remove null members of objects at any depth. Returns ``value`` itself if there are none."""
    result = value
    if type(value) is dict:
        for key, member in value.items():
            kind = type(member)
            if member is None:
                result = dict(value) if result is value else result
                del result[key]
            elif (kind is dict or kind is list) and (kept := without_nulls(member)) is not member:
                result = dict(value) if result is value else result
                result[key] = kept
    elif type(value) is list:
        for index, item in enumerate(value):
            kind = type(item)
            if (kind is dict or kind is list) and (kept := without_nulls(item)) is not item:
                result = list(value) if result is value else result
                result[index] = kept
    return result
