"""Printers of custom resources, from the additionalPrinterColumns of their definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import orjson

from sandpool.api import columns
from sandpool.api.columns import Column
from sandpool.api.resource import Object
from sandpool.server.jsonpath import JsonPath, compile_path
from sandpool.server.tables.age import age
from sandpool.server.tables.printer import NAME, Printer, TableColumn, name_of

# Go's encoding/json escapes these characters; orjson does not.
_ESCAPED = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def custom_printer(definitions: Iterable[Column]) -> Printer:
    """The printer for the columns of a custom resource; without columns it prints the age."""
    shown = tuple(definitions) or (columns.AGE,)
    paths = [(column.type, _path(column)) for column in shown]

    def cells(obj: Object, now: datetime) -> list[Any]:
        return [name_of(obj), *(_cell(type, path, obj, now) for type, path in paths)]

    return Printer((NAME, *map(_table_column, shown)), cells)


def _table_column(column: Column) -> TableColumn:
    description = column.description or f"Custom resource definition column (in JSONPath format): {column.json_path}"
    return TableColumn(column.name, column.type, column.format, column.priority, description)


def _path(column: Column) -> JsonPath | None:
    try:
        return compile_path(column.json_path)
    except ValueError:  # stored before paths were validated: an empty column beats a failing list
        return None


def _cell(type: str, path: JsonPath | None, obj: Object, now: datetime) -> Any:
    """The first value that the path finds, converted to the type of its column; None if it does not fit."""
    found = path.find(obj) if path else []
    if not found:
        return None
    value = found[0]
    if type == "string":
        return _text(value)
    convert = _CONVERSIONS.get(type)
    return convert(value, now) if convert and value is not None else None


def _integer(value: Any, now: datetime) -> int | None:
    return int(value) if _is_number(value) else None


def _number(value: Any, now: datetime) -> float | None:
    return float(value) if _is_number(value) else None


def _boolean(value: Any, now: datetime) -> bool | None:
    return value if isinstance(value, bool) else None


def _date(value: Any, now: datetime) -> str | None:
    return age(value, now) if isinstance(value, str) else None


_CONVERSIONS: dict[str, Callable[[Any, datetime], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "<no value>"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    if isinstance(value, bool | dict | list):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode().translate(_ESCAPED)
    return repr(value)
