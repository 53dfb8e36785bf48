"""Ownership as a Shape defines it: which values are atomic, and the path elements of list items.

Values without a shape have deduced types: maps are owned key by key, lists as a whole. An empty ``Shape`` has exactly
this meaning, so it stands for every such value.
"""

from __future__ import annotations

from typing import Any, Final

from sandpool.api.schema.shape import MISSING, Shape
from sandpool.server.apply import path_elements
from sandpool.server.apply.caches import cached
from sandpool.server.apply.fieldset import CACHE_SIZE, FieldSet, make

ANYTHING: Final = Shape()


class InvalidListItem(ValueError):
    """An item of an associative list that cannot be identified: its keys are missing or its type is wrong."""


def shape_of_field(shape: Shape, name: str) -> Shape:
    """The shape of the value under ``name`` in an object or a map."""
    return shape.properties.get(name) or shape.additional or ANYTHING


def shape_of_item(shape: Shape) -> Shape:
    return shape.items or ANYTHING


def is_atomic(shape: Shape, container: type) -> bool:
    """Whether a dict or list of this shape is atomic, that is, owned as a whole."""
    return (shape.list_type if container is list else shape.map_type) == "atomic"


def has_owned_parts(shape: Shape, value: Any) -> bool:
    """Whether the parts of this value are owned one by one. An empty container is owned itself."""
    kind = value.__class__
    if kind is dict:
        return bool(value) and shape.map_type != "atomic"
    return kind is list and bool(value) and shape.list_type != "atomic"


def item_element(shape: Shape, value: Any) -> str:
    """The path element of the item ``value`` of a list of this shape, a set or keyed list. Raises InvalidListItem."""
    keys = shape.list_keys
    if not keys:
        if isinstance(value, str | int | float):
            return path_elements.value(value)
        if value is None:
            raise InvalidListItem("associative list without keys has an element that's an explicit null")
        if isinstance(value, dict):
            raise InvalidListItem("associative list without keys has an element that's a map type")
        raise InvalidListItem("not supported: associative list with lists as elements")
    if not isinstance(value, dict):
        what = "a null element" if value is None else "non-map elements"
        raise InvalidListItem(f"associative list with keys may not have {what}")
    try:
        return path_elements.key(keys, *[value[name] for name in keys])
    except (KeyError, TypeError):  # a key is missing or not a scalar
        return _key_with_defaults(shape, value)


def items_by_element(shape: Shape, values: list[Any]) -> dict[str, Any]:
    """The items of a list by path element; the last of several with the same one. Raises InvalidListItem."""
    keys = shape.list_keys
    if len(keys) == 1:
        try:
            name = keys[0]
            return {path_elements.key(keys, each[name]): each for each in values}
        except (KeyError, TypeError):
            pass  # handled item by item below
    return {item_element(shape, each): each for each in values}


def _key_with_defaults(shape: Shape, value: dict[str, Any]) -> str:
    """The path element of an item with missing keys: defaults replace them; keys without a default are left out."""
    found: dict[str, Any] = {}
    for name in shape.list_keys:
        if name in value:
            found[name] = value[name]
            continue
        default = shape_of_field(shape_of_item(shape), name).default
        if default is not MISSING and default is not None:
            found[name] = default
    if not found:
        listed = " ".join(f'"{name}"' for name in shape.list_keys)
        raise InvalidListItem(
            f"associative list with keys has an element that omits all key fields [{listed}]"
            " (and doesn't have default values for any key fields)"
        )
    return path_elements.keys(found)


@cached(CACHE_SIZE)
def reconcile(fields: FieldSet, shape: Shape) -> FieldSet:
    """Adapt a stored set to a schema that has changed since it was stored.

    A list or map that has become atomic is owned as a whole from then on: every owner of some of its parts owns it.
    """
    members = set(fields.members)
    children: dict[str, FieldSet] = {}
    for element, below in fields.children.items():
        inner = shape_of_field(shape, element[2:]) if element[0] == "f" else shape_of_item(shape)
        if is_atomic(inner, dict) if inner.type != "array" else is_atomic(inner, list):
            members.add(element)
        else:
            children[element] = reconcile(below, inner)
    return make(members, children)
