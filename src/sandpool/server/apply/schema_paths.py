"""How ownership reads a Shape: which values are owned as a whole, and what the items of a list are called.

Values that no shape describes have deduced types: maps are owned key by key, lists as a whole. An empty ``Shape`` says
just that, so it stands for every undescribed value.
"""

from __future__ import annotations

from typing import Any, Final

from sandpool.api.schema.shape import MISSING, Shape
from sandpool.server.apply import path_elements
from sandpool.server.apply.caches import cached
from sandpool.server.apply.fieldset import CACHE_SIZE, FieldSet, make

ANYTHING: Final = Shape()


class InvalidListItem(ValueError):
    """An item of a list that cannot be told from the others: it lacks its keys, or is of the wrong type."""


def shape_of_field(shape: Shape, name: str) -> Shape:
    """The shape of the value under ``name`` in an object or a map."""
    return shape.properties.get(name) or shape.additional or ANYTHING


def shape_of_item(shape: Shape) -> Shape:
    return shape.items or ANYTHING


def is_atomic(shape: Shape, container: type) -> bool:
    """Whether a dict or list of this shape is owned as a whole."""
    return (shape.list_type if container is list else shape.map_type) == "atomic"


def has_owned_parts(shape: Shape, value: Any) -> bool:
    """Whether the parts of this value are owned one by one. Empty containers have no parts and are owned themselves."""
    kind = value.__class__
    if kind is dict:
        return bool(value) and shape.map_type != "atomic"
    return kind is list and bool(value) and shape.list_type != "atomic"


def item_element(shape: Shape, value: Any) -> str:
    """What the item ``value`` of a list of this shape, a set or a keyed list, is called. Raises BadItem."""
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
    except (KeyError, TypeError):  # a key is left out, or is no scalar
        return _key_with_defaults(shape, value)


def items_by_element(shape: Shape, values: list[Any]) -> dict[str, Any]:
    """The items of a list by what they are called; of those that are called the same, the last. Raises BadItem."""
    keys = shape.list_keys
    if len(keys) == 1:
        try:
            name = keys[0]
            return {path_elements.key(keys, each[name]): each for each in values}
        except (KeyError, TypeError):
            pass  # not the usual kind of items
    return {item_element(shape, each): each for each in values}


def _key_with_defaults(shape: Shape, value: dict[str, Any]) -> str:
    """Keys that are left out count with their defaults; those without one are no part of what the item is called."""
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
    members = set(fields.members)
    children: dict[str, FieldSet] = {}
    for element, below in fields.children.items():
        inner = shape_of_field(shape, element[2:]) if element[0] == "f" else shape_of_item(shape)
        if is_atomic(inner, dict) if inner.type != "array" else is_atomic(inner, list):
            members.add(element)
        else:
            children[element] = reconcile(below, inner)
    return make(members, children)
