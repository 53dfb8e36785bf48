"""The fields of each protobuf message, from ``fields.json``, which ``dev/protobuf-fields`` generates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import orjson

_SCALARS: dict[str, Any] = {"string": "", "bytes": "", "int": 0, "double": 0.0, "bool": False}


@dataclass(frozen=True, slots=True)
class Field:
    name: str  # JSON name; empty for an inlined message
    type: str  # a scalar, one of the special types, or the name of a message
    repeated: bool
    is_map: bool  # from strings to ``type``
    inline: bool  # the fields of the message belong to the outer JSON object
    omit_zero: bool  # a zero scalar is omitted, because Go cannot distinguish it from absent
    omit_empty: bool  # a message without fields is omitted


@dataclass(frozen=True, slots=True)
class Message:
    name: str
    fields: dict[int, Field]
    zeros: dict[str, Any]  # scalars that JSON always contains, even if protobuf omits their zero


@cache
def message(name: str) -> Message:
    fields, zeros = {}, {}
    for number, json_name, type, flags in _table()["messages"][name]:
        fields[number] = Field(
            name=json_name,
            type=type,
            repeated="r" in flags,
            is_map="m" in flags,
            inline="i" in flags,
            omit_zero="e" in flags and "p" not in flags and type in _SCALARS,
            omit_empty="z" in flags,
        )
        if not flags and type in _SCALARS and type != "bytes":
            zeros[json_name] = _SCALARS[type]
    return Message(name, fields, zeros)


def message_of_kind(api_version: str, kind: str) -> Message | None:
    """The message of a kind; None if it is unknown."""
    if kind == "DeleteOptions":  # the same message in every group version
        api_version = "v1"
    name = _table()["kinds"].get(f"{api_version} {kind}")
    return message(name) if name else None


def zero(type: str) -> Any:
    """The value of a map entry that was encoded without one."""
    return _SCALARS.get(type)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = orjson.loads(resources.files(__package__).joinpath("fields.json").read_bytes())
    return table
