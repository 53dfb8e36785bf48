"""Merging of an applied configuration into a live object: applied fields are set, all others stay.

Merging never removes fields; ``prune`` does. Unchanged subtrees keep their identity.
"""

from __future__ import annotations

from typing import Any

from sandpool.api.schema.shape import MISSING, Shape
from sandpool.server.apply.comparison import json_equal
from sandpool.server.apply.schema_paths import has_owned_parts, item_element, shape_of_field, shape_of_item


def merge(live: Any, applied: Any, shape: Shape) -> Any:
    """Merge ``applied`` into ``live``. Raises InvalidListItem."""
    if has_owned_parts(shape, live):
        if not applied and (applied is None or applied.__class__ is live.__class__):
            return live  # an empty container sets none of the parts
        if applied.__class__ is live.__class__:
            return _merge_maps(live, applied, shape) if live.__class__ is dict else _merge_lists(live, applied, shape)
    return live if json_equal(live, applied) else applied


def _merge_maps(live: dict[str, Any], applied: dict[str, Any], shape: Shape) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in applied.items():
        before = live.get(name, MISSING)
        after = value if before is MISSING else merge(before, value, shape_of_field(shape, name))
        if after is not before:
            changed[name] = after
    return {**live, **changed} if changed else live


def _merge_lists(live: list[Any], applied: list[Any], shape: Shape) -> list[Any]:
    """Merge two associative lists; the result has each item once.

    Items of ``applied`` keep their order, and keep their position relative to the other items as far as that order
    allows. Both lists are walked side by side: items that only ``live`` has are taken where they occur, and items that
    both have are taken in the order of ``applied``.
    """
    inner = shape_of_item(shape)
    live_elements = [item_element(shape, each) for each in live]
    applied_elements = [item_element(shape, each) for each in applied]
    wanted = dict(zip(applied_elements, applied, strict=True))
    # Live items that share a path element cannot be merged with: the applied item replaces all of them.
    present: dict[str, Any] = {}
    for element, each in zip(live_elements, live, strict=True):
        present[element] = None if element in present else each

    def merged(element: str) -> Any:
        before = present.get(element)
        return wanted[element] if before is None else merge(before, wanted[element], inner)

    shared = iter([element for element in applied_elements if element in present])
    next_shared = next(shared, None)
    result: list[Any] = []
    done: set[str] = set()
    at_live = at_applied = 0
    while at_live < len(live) or at_applied < len(applied):
        if at_live < len(live):
            element = live_elements[at_live]
            if element not in wanted:
                result.append(live[at_live])
                at_live += 1
                continue
            if at_applied < len(applied) and next_shared not in (None, element):
                at_live += 1  # both lists have it; it is taken in the order of ``applied``
                continue
            if element in done:
                at_live += 1
                if at_applied == len(applied):
                    continue
        element = applied_elements[at_applied]
        if at_live < len(live) and live_elements[at_live] == element:
            at_live += 1
        result.append(merged(element))
        done.add(element)
        at_applied += 1
        if element == next_shared:
            next_shared = next(shared, None)
    if len(result) == len(live) and all(map(_identical, result, live)):
        return live
    return result


def _identical(a: Any, b: Any) -> bool:
    return a is b
