"""Validation that an applied configuration fits its schema well enough to be merged.

Unlike an object, a configuration may leave out required fields. But every field must be known, because an unknown one
could not be owned, and the items of associative lists must be identifiable. The messages are kube-apiserver's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.schema.shape import Shape
from sandpool.kube.gotext import go_type, go_value
from sandpool.server.apply import path_elements
from sandpool.server.apply.go_format import go_syntax
from sandpool.server.apply.schema_paths import ANYTHING, InvalidListItem, item_element, shape_of_item

_STRING_FORMATS: Final = ("", "byte")  # strings of any other format may also be written as other scalars
# A scalar, although it is declared without a type.
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"

SchemaError = tuple[str, str]  # path, message


def schema_errors(value: Any, shape: Shape) -> str:
    """The errors of a configuration as text; empty if there are none."""
    found = [f"{path}: {message}" if path else message for path, message in _check(value, shape, "", False)]
    if len(found) < 2:
        return "".join(found)
    return "\n  ".join(["errors:", *found])


def _check(value: Any, shape: Shape, path: str, preserving: bool) -> Iterator[SchemaError]:
    """``preserving``: unknown fields are preserved here because an ancestor preserves them. Named types reset this."""
    if value is None:
        return
    preserving = shape.preserve_unknown or (preserving and not shape.name)
    kind = shape.type if shape.name != _QUANTITY else "quantity"
    if kind == "object" or (kind == "" and isinstance(value, dict)):
        if isinstance(value, dict):
            yield from _check_map(value, shape, path, preserving)
        else:
            yield path, f"expected map, got &{{{go_value(value)}}}"
    elif kind == "array" or (kind == "" and isinstance(value, list)):
        if isinstance(value, list):
            yield from _check_list(value, shape, path, preserving)
        else:
            yield path, f"expected list, got &{{{go_value(value)}}}"
    else:
        yield from ((path, message) for message in _check_scalar(value, shape))


def _check_map(value: dict[str, Any], shape: Shape, path: str, preserving: bool) -> Iterator[SchemaError]:
    open_ended = preserving or not shape.properties
    for name in sorted(value):
        below = path + path_elements.text(path_elements.field(name))
        inner = shape.properties.get(name) or shape.additional or (ANYTHING if open_ended else None)
        if inner is None:
            yield below, "field not declared in schema"
            return
        yield from _check(value[name], inner, below, preserving)


def _check_list(value: list[Any], shape: Shape, path: str, preserving: bool) -> Iterator[SchemaError]:
    seen: set[str] = set()
    for position, each in enumerate(value):
        element = path_elements.index(position)
        if shape.list_type != "atomic":
            try:
                element = item_element(shape, each)
            except InvalidListItem as error:
                yield path, f"element {position}: {error}"
                return
            if element in seen:
                yield path, f"duplicate entries for key {path_elements.text(element)}"
            seen.add(element)
        yield from _check(each, shape_of_item(shape), path + path_elements.text(element), preserving)


def _check_scalar(value: Any, shape: Shape) -> Iterator[str]:
    is_scalar = isinstance(value, str | bool | int | float)
    if shape.type in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"expected numeric (int or float), got {go_type(value)}"
    elif shape.type == "boolean":
        if not isinstance(value, bool):
            yield f"expected boolean, got &{{{go_value(value)}}}"
    elif shape.type == "string" and shape.format in _STRING_FORMATS:
        if not isinstance(value, str):
            yield f"expected string, got &value.valueUnstructured{{Value:{go_syntax(value)}}}"
    elif not is_scalar:
        yield f"expected any scalar, got &{{{go_value(value)}}}"
