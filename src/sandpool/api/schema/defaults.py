"""Defaulting of objects that were stored before their schema had a default.

Only the parts of a shape that lead to a default are walked, so for most kinds this takes a few lookups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandpool.api.schema.shape import MISSING, Shape

Fill = Callable[[Any], Any]


def compile_defaults(shape: Shape) -> Fill:
    """Compile a function that fills in defaults. It returns the same value if nothing changed."""
    return _Defaults().compile(shape) or (lambda value: value)


class _Defaults:
    def __init__(self) -> None:
        self._compiled: dict[int, Fill | None] = {}

    def compile(self, shape: Shape) -> Fill | None:
        """None if no part of this shape has a default. A recursive shape counts as having one."""
        if id(shape) in self._compiled:
            return self._compiled[id(shape)]
        built: list[Fill | None] = []
        self._compiled[id(shape)] = lambda value: built[0](value) if built[0] else value
        built.append(self._build(shape))
        self._compiled[id(shape)] = built[0]
        return built[0]

    def _build(self, shape: Shape) -> Fill | None:
        if shape.items is not None:
            return _list_fill(self.compile(shape.items))
        if shape.additional is not None:
            return _map_fill(self.compile(shape.additional))
        inner = {name: fill for name, each in shape.properties.items() if (fill := self.compile(each)) is not None}
        defaults = {
            name: each.default
            for name, each in shape.properties.items()
            if each.default is not MISSING and each.default is not None
        }
        return _struct_fill(defaults, inner) if defaults or inner else None


def _struct_fill(defaults: dict[str, Any], inner: dict[str, Fill]) -> Fill:
    def fill(value: Any) -> Any:
        if type(value) is not dict:
            return value
        result = value
        for name, default in defaults.items():
            if name not in value:
                if result is value:
                    result = dict(value)
                result[name] = default
        for name, nested in inner.items():
            if name in result:
                before = result[name]
                after = nested(before)
                if after is not before:
                    if result is value:
                        result = dict(value)
                    result[name] = after
        return result

    return fill


def _map_fill(inner: Fill | None) -> Fill | None:
    if inner is None:
        return None
    fill_value = inner

    def fill(value: Any) -> Any:
        if type(value) is not dict:
            return value
        filled = {key: fill_value(item) for key, item in value.items()}
        return value if all(filled[key] is item for key, item in value.items()) else filled

    return fill


def _list_fill(inner: Fill | None) -> Fill | None:
    if inner is None:
        return None
    fill_item = inner

    def fill(value: Any) -> Any:
        if type(value) is not list:
            return value
        filled = [fill_item(item) for item in value]
        return value if all(new is old for new, old in zip(filled, value, strict=True)) else filled

    return fill
