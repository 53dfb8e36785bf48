"""Bringing a stored field set in line with a schema that has changed since.

A list or map that has become atomic is owned as a whole from then on: whoever owned some of its parts owns all of it.
"""

from __future__ import annotations

from functools import lru_cache

from sandpool.api.schema.shape import Shape
from sandpool.server.apply.fieldset import CACHE_SIZE, FieldSet, make
from sandpool.server.apply.schema_paths import is_atomic, shape_of_field, shape_of_item


@lru_cache(CACHE_SIZE)
def reconcile(fields: FieldSet, shape: Shape) -> FieldSet:
    members = set(fields.members)
    children: dict[str, FieldSet] = {}
    for element, below in fields.children.items():
        inner = shape_of_field(shape, element[2:]) if element[0] == "f" else shape_of_item(shape)
        if is_atomic(inner, dict) if inner.type != "array" else is_atomic(inner, list):
            members.add(element)
        else:
            children[element] = reconcile(below, inner)
    return make(members, children)
