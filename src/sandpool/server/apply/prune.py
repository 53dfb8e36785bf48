"""Pruning: removal of fields that an applier applied before and no longer applies.

A field is removed if the applier's previous configuration owned it, its new one does not, and no other manager does.
Values below such a field that have no owner, such as defaults, are removed with it, but must stay below a field that
stays. Hence three steps: remove everything that the applier owned, restore what any manager owns, and restore what the
applier did not own before.
"""

from __future__ import annotations

from typing import Any

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.server.apply import path_elements
from sandpool.server.apply.caches import cached
from sandpool.server.apply.comparison import fields_of
from sandpool.server.apply.fieldset import CACHE_SIZE, EMPTY, FieldSet, make
from sandpool.server.apply.schema_paths import has_owned_parts, item_element, shape_of_field, shape_of_item


def prune(merged: Object, previous: FieldSet, owned: FieldSet, shape: Shape) -> Object:
    """Remove the fields that only ``previous`` owned. Raises InvalidListItem.

    ``owned`` are the fields of all managers now, including the applier with its new configuration.
    """
    previous = with_declared(previous, shape)
    everything = with_declared(fields_of(merged, shape), shape)
    pruned = remove(merged, previous, shape)
    kept = with_declared(fields_of(pruned, shape), shape) | with_declared(owned, shape)
    pruned = remove(merged, everything - kept, shape)
    kept = with_declared(fields_of(pruned, shape), shape)
    left: Object = remove(merged, (everything - kept) & previous, shape)
    return left


def remove(value: Any, doomed: FieldSet, shape: Shape) -> Any:
    """Return ``value`` without the given fields. A container that loses its last part becomes null but stays owned."""
    if doomed is EMPTY or not isinstance(value, dict | list):
        return value
    if not has_owned_parts(shape, value):
        return None
    if isinstance(value, dict):
        return _remove_from_map(value, doomed, shape)
    items = [(each, item_element(shape, each)) for each in value]
    inner, below = shape_of_item(shape), doomed.children.get
    left = [remove(each, below(element, EMPTY), inner) for each, element in items if element not in doomed.members]
    if len(left) == len(value) and all(after is before for after, before in zip(left, value, strict=True)):
        return value
    return left or None


def _remove_from_map(value: dict[str, Any], doomed: FieldSet, shape: Shape) -> Any:
    left: dict[str, Any] = {}
    changed = False
    for name, each in value.items():
        element = path_elements.field(name)
        if element in doomed.members:
            changed = True
            continue
        below = doomed.children.get(element, EMPTY)
        left[name] = remove(each, below, shape_of_field(shape, name))
        changed = changed or left[name] is not each
    if not changed:
        return value
    return left or None


@cached(CACHE_SIZE)
def with_declared(fields: FieldSet, shape: Shape) -> FieldSet:
    """``fields`` and all declared fields that contain them.

    The set of an applier leaves those out, but an object cannot have ``spec.replicas`` without ``spec``.
    """
    members = set(fields.members)
    children: dict[str, FieldSet] = {}
    for element, below in fields.children.items():
        kind, name = element[0], element[2:]
        if kind == "f":
            if name in shape.properties:
                members.add(element)
            inner = shape_of_field(shape, name)
        else:
            inner = shape_of_item(shape)
        children[element] = with_declared(below, inner)
    return make(members, children)
