"""Path elements: the names of single steps from a value into one of its parts, as FieldsV1 spells them.

An element is a plain string: ``f:spec`` is a field or a map key, ``k:{"name":"main"}`` the item of a list that has
these keys, ``v:"tcp"`` the item of a set with this value, ``i:0`` the item at this position. Strings are hashed,
compared and encoded at no extra cost. That requires exactly one spelling for each element, which the constructors here
and ``canonical`` ensure.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from sandpool.api.causes import quoted
from sandpool.server.apply.caches import cached, charge
from sandpool.server.apply.go_format import json_text, scalar

_REMEMBERED: Final = 1 << 14
_LONG: Final = 256  # characters; the caches have room for as many shorter elements as they hold


class InvalidPathElement(ValueError):
    """Text that is not a valid path element."""


def field(name: str) -> str:
    return "f:" + name


def index(position: int) -> str:
    return f"i:{position}"


@cached(_REMEMBERED, typed=True)
def value(item: Any) -> str:
    """The element of an item of a set. Only scalars can be such items."""
    element = "v:" + _json(item)
    if len(element) > _LONG:
        charge(len(element))
    return element


@cached(_REMEMBERED, typed=True)
def key(names: tuple[str, ...], *values: Any) -> str:
    """The element of an item of a keyed list: the names of its keys, and their values in the same order."""
    element = keys(dict(zip(names, values, strict=True)))
    if len(element) > _LONG:
        charge(len(element))
    return element


def keys(given: dict[str, Any]) -> str:
    """The element of an item of a keyed list, from a subset of its keys with values of any type."""
    return "k:{" + ",".join(f"{_json(name)}:{_json(given[name])}" for name in sorted(given)) + "}"


@cached(_REMEMBERED)
def canonical(text: str) -> str | None:
    """The canonical spelling of an element read from FieldsV1. Raises InvalidPathElement.

    Returns None for an unknown kind of element, which is ignored.
    """
    if len(text) > _LONG:
        charge(len(text))
    if len(text) < 2:
        raise InvalidPathElement("key must be 2 characters long:")
    if text[1] != ":":
        raise InvalidPathElement(f"missing colon: {text}")
    kind, rest = text[0], text[2:]
    if kind == "f":
        return text
    if kind not in "vki":
        return None
    try:
        parsed = int(rest) if kind == "i" else orjson.loads(rest)
    except ValueError as error:
        raise InvalidPathElement(f"{error}: {text}") from None
    if kind == "i":
        return index(parsed)
    if kind == "v":
        return "v:" + _json(parsed)
    if not isinstance(parsed, dict):
        raise InvalidPathElement(f"keys must be an object: {text}")
    return keys(parsed)


@cached(_REMEMBERED)
def sort_key(element: str) -> tuple[Any, ...]:
    """A sort key: fields before keys before values before positions, and each of them by content."""
    if len(element) > _LONG:
        charge(len(element))
    kind, rest = element[0], element[2:]
    if kind == "f":
        return (0, rest)
    if kind == "k":
        return (1, *((name, _rank(each)) for name, each in orjson.loads(rest).items()))
    if kind == "v":
        return (2, _rank(orjson.loads(rest)))
    return (3, int(rest))


@cached(_REMEMBERED)
def text(element: str) -> str:
    """The element in an error message: ``.spec``, ``[name="main"]``, ``[="tcp"]``, ``[0]``."""
    if len(element) > _LONG:
        charge(len(element))
    kind, rest = element[0], element[2:]
    if kind == "f":
        return "." + rest
    if kind == "k":
        return "[" + ",".join(f"{name}={_readable(each)}" for name, each in orjson.loads(rest).items()) + "]"
    if kind == "v":
        return f"[={_readable(orjson.loads(rest))}]"
    return f"[{rest}]"


def _json(item: Any) -> str:
    if isinstance(item, float) and item.is_integer() and abs(item) < 1e21:
        item = int(item)  # 1.0 is spelled 1
    return json_text(item)


def _rank(item: Any) -> tuple[int, Any]:
    """A total order over JSON values: numbers, strings, booleans, containers, null."""
    if isinstance(item, bool):
        return (2, item)
    if isinstance(item, int | float):
        return (0, item)
    if isinstance(item, str):
        return (1, item)
    return (4, "") if item is None else (3, _json(item))


def _readable(item: Any) -> str:
    if item is None:
        return "null"
    if isinstance(item, str):
        return quoted(item)
    return scalar(item) if isinstance(item, bool | int | float) else _json(item)
