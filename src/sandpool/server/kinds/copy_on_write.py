"""Copy-on-write edits of JSON objects.

Each function returns its argument if nothing changes, and shares every subtree that it does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandpool.api.resource import Object


def put(obj: Object, key: str, value: Any) -> Object:
    """Return the object with ``key`` set."""
    if key in obj and (obj[key] is value or obj[key] == value):
        return obj
    return {**obj, key: value}


def drop(obj: Object, *keys: str) -> Object:
    """Return the object without ``keys``."""
    if not obj.keys().isdisjoint(keys):
        return {key: value for key, value in obj.items() if key not in keys}
    return obj


def fill_absent(obj: Object, defaults: Mapping[str, Any]) -> Object:
    """Set keys that are absent or null. For Go pointers, where an empty value is a choice of the author."""
    missing = {key: value for key, value in defaults.items() if key not in obj or obj[key] is None}
    return {**obj, **missing} if missing else obj


def fill_empty(obj: Object, defaults: Mapping[str, Any]) -> Object:
    """Set keys that are absent, null, empty or zero. For plain Go values, which cannot tell these apart."""
    missing = {key: value for key, value in defaults.items() if key not in obj or not obj[key]}
    return {**obj, **missing} if missing else obj


def inside(obj: Object, key: str, edit: Callable[[Any], Any]) -> Object:
    """Apply ``edit`` to the value at ``key`` if there is one."""
    value = obj.get(key)
    if value is None:
        return obj
    edited = edit(value)
    unchanged = edited is value or (isinstance(value, str) and edited == value)
    return obj if unchanged else {**obj, key: edited}


def each(items: list[Any], edit: Callable[[Any], Any]) -> list[Any]:
    """Apply ``edit`` to every item of a list."""
    edited = [edit(item) for item in items]
    return items if all(new is old for new, old in zip(edited, items, strict=True)) else edited


def keep(new: Object, old: Object, *keys: str) -> Object:
    """Return the new object with the values that ``keys`` have in the old one, or without them if absent there."""
    for key in keys:
        if key in old:
            if key not in new or new[key] is not old[key]:
                new = {**new, key: old[key]}
        elif key in new:
            new = drop(new, key)
    return new
