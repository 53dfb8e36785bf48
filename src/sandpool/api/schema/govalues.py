"""Decodes single values as Go does: accepted types, canonical forms, and the errors of a mismatch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from sandpool.api import quantity
from sandpool.api.schema.compiler import Step
from sandpool.api.schema.findings import Findings, Undecodable
from sandpool.api.schema.shape import Shape
from sandpool.api.schema.times import read_micro_time, read_time

# Findings are unknown fields only. A value that cannot be decoded raises.
Decode = Step

_RANGES: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


class Mismatch(Exception):
    """A value of the wrong type. Each level that the exception passes adds its part of the path."""

    def __init__(self, value: str, go_type: str) -> None:
        super().__init__(value, go_type)
        self.value = value
        self.go_type = go_type
        self.struct = ""
        self.path: list[str] = []  # innermost first

    def undecodable(self) -> Undecodable:
        into = f"struct field {self.struct}.{'.'.join(reversed(self.path))}" if self.path else "value"
        return Undecodable(f"json: cannot unmarshal {self.value} into Go {into} of type {self.go_type}")


def mismatch(value: Any, go_type: str) -> Mismatch:
    """Return the error for a value that does not fit a Go type."""
    kinds = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    return Mismatch(kinds.get(type(value), "object"), go_type)


def scalar_decoder(shape: Shape) -> Decode:
    """Return the decoder for scalars of a shape. It raises ``Mismatch`` or ``Undecodable``."""
    go_type = go_name(shape)
    if shape.type == "string" and shape.format == "date-time":
        return _text(read_micro_time if shape.name.endswith("MicroTime") else read_time, "string")
    if shape.type == "string" and shape.format == "byte":
        return _text(_read_base64, "[]uint8")
    if shape.type == "integer":
        return _integer(*_RANGES.get(shape.format, _RANGES["int64"]), go_type)
    python = {"string": (str,), "boolean": (bool,), "number": (int, float)}.get(shape.type)
    if python is None:
        return _as_it_is
    accepted = python

    def decode(value: Any, old: Any, found: Findings) -> Any:
        if type(value) not in accepted:
            raise mismatch(value, go_type)
        return value

    return decode


def _as_it_is(value: Any, old: Any, found: Findings) -> Any:
    return value


def _text(read: Callable[[str], str], go_type: str) -> Decode:
    def decode(value: Any, old: Any, found: Findings) -> Any:
        if type(value) is not str:
            raise mismatch(value, go_type)
        return read(value)

    return decode


def _integer(low: int, high: int, go_type: str) -> Decode:
    def decode(value: Any, old: Any, found: Findings) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        if type(value) is int or type(value) is float:
            raise Mismatch(f"number {value}", go_type)
        raise mismatch(value, go_type)

    return decode


_decode_int32: Final = _integer(*_RANGES["int32"], "int32")


def decode_int_or_string(value: Any, old: Any, found: Findings) -> Any:
    return value if type(value) is str else _decode_int32(value, old, found)


def decode_quantity(value: Any, old: Any, found: Findings) -> Any:
    if type(value) not in (str, int, float):
        raise Undecodable(quantity.NOT_A_QUANTITY)
    try:
        canonical = quantity.canonical(value)
    except ValueError as error:
        raise Undecodable(str(error)) from None
    return value if canonical == value else canonical


_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/\r\n]")


def _read_base64(text: str) -> str:
    """Return valid Base64 without line breaks. Raises ``Undecodable`` with the position of the first invalid byte."""
    body = text.rstrip("=") if len(text) % 4 == 0 and text.endswith("=") and not text.endswith("===") else text
    invalid = _NOT_BASE64.search(body)
    if invalid is None and "\n" not in text and "\r" not in text and len(text) % 4 == 0:
        return text
    plain = text.replace("\n", "").replace("\r", "")
    if invalid is None and plain != text:
        return _read_base64(plain)
    raise Undecodable(f"illegal base64 data at input byte {invalid.start() if invalid else len(plain) // 4 * 4}")


def go_name(shape: Shape) -> str:
    """The Go type of a shape, as decoding errors quote it."""
    if shape.go_type:
        return shape.go_type
    if shape.type == "array":
        return "[]" + go_name(shape.items or Shape())
    if shape.additional is not None:
        return "map[string]" + go_name(shape.additional)
    if shape.name:
        *_, package, name = shape.name.split(".")
        return f"{package}.{name}"
    if shape.type == "integer":
        return shape.format or "int64"
    return {"string": "string", "boolean": "bool", "number": "float64"}.get(shape.type, "interface {}")
