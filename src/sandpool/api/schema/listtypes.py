"""Lists of type set and map: correlation of items and detection of duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from sandpool.api import causes
from sandpool.api.schema.findings import LIST_TYPE, Findings
from sandpool.api.schema.shape import MISSING, Shape

# Finds the item of the old list that corresponds to an item of the new list; MISSING if there is none.
Correlation = Callable[[Any], Any]
DuplicateCheck = Callable[[list[Any], Findings], None]

_UNSET: Final = object()


def duplicate_check(shape: Shape) -> DuplicateCheck | None:
    """Reports items that appear more than once in a set, or with the same keys in a map; None for other lists."""
    if shape.list_type == "set":
        return _check_set
    if shape.list_type == "map" and shape.list_keys:
        return _map_check(shape.list_keys)
    return None


def _check_set(items: list[Any], found: Findings) -> None:
    if _has_duplicates(items):
        _report(items, found)


def _map_check(keys: tuple[str, ...]) -> DuplicateCheck:
    first = keys[0]

    def check(items: list[Any], found: Findings) -> None:
        try:
            if len({item[first] for item in items}) == len(items):
                return
        except (KeyError, TypeError):  # a key is missing or unhashable: use the slow path
            pass
        try:
            values = [tuple([item.get(key, _UNSET) for key in keys]) for item in items]
        except AttributeError:  # not an object; the schema reported it unless it is null
            if _report_stranger(items, found):
                return
            values = [
                tuple([item.get(key, _UNSET) for key in keys]) if item else (_UNSET,) * len(keys) for item in items
            ]
        if _has_duplicates(values):
            entries = [
                {key: part for key, part in zip(keys, value, strict=True) if part is not _UNSET} for value in values
            ]
            _report(entries, found)

    return check


def _has_duplicates(values: list[Any]) -> bool:
    """Whether there may be duplicates. Not exact: in Python 1 == True, and some values are not hashable."""
    try:
        return len(set(values)) != len(values)
    except TypeError:
        return True


def _report(entries: list[Any], found: Findings) -> None:
    """Report the second occurrence of each entry, not the further ones."""
    times: dict[bytes | str, int] = {}
    for index, entry in enumerate(entries):
        identity = _identity(entry)
        times[identity] = times.get(identity, 0) + 1
        if times[identity] == 2:
            _add_duplicate(found, index, entry)


def _identity(entry: Any) -> bytes | str:
    try:
        return orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)
    except (TypeError, orjson.JSONEncodeError):  # integers beyond 64 bits
        return repr(entry)


def _add_duplicate(found: Findings, index: int, entry: Any) -> None:
    count = len(found)
    found.add(lambda path: causes.duplicate(path, entry), LIST_TYPE)
    found.within(index, count)


def _report_stranger(items: list[Any], found: Findings) -> bool:
    """Report the first item that is not an object. The schema reports nulls."""
    strangers = [index for index, item in enumerate(items) if item is not None and type(item) is not dict]
    if not strangers:
        return False
    stranger = items[strangers[0]]
    count = len(found)
    found.add(lambda path: causes.invalid(path, stranger, "must be an object for an array of list-type map"), LIST_TYPE)
    found.within(strangers[0], count)
    return True


def correlator(shape: Shape) -> Callable[[list[Any]], Correlation]:
    """Correlate items by their keys in lists of type map. Items of other lists have no correlation."""
    keys = shape.list_keys
    if shape.list_type != "map" or not keys:
        return lambda old: lambda item: MISSING

    def identity(item: Any) -> tuple[Any, ...] | None:
        if type(item) is not dict:
            return None
        found = tuple([item.get(key) for key in keys])
        return found if all(type(each) in (str, int, bool, float) for each in found) else None

    def correlate(old: list[Any]) -> Correlation:
        by_key = {identity(item): item for item in old}
        by_key.pop(None, None)
        return lambda item: by_key.get(identity(item), MISSING)

    return correlate
