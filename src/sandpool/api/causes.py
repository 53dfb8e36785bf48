"""Validation errors of an object, as a Status response lists them in ``details.causes``.

The constructors produce kube-apiserver's messages, because users search for them and clients match on them. Values
in these messages have Go's format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

IMMUTABLE: Final = "field is immutable"

# Reasons of causes.
DUPLICATE: Final = "FieldValueDuplicate"
FORBIDDEN: Final = "FieldValueForbidden"
INVALID: Final = "FieldValueInvalid"
NOT_FOUND: Final = "FieldValueNotFound"
NOT_SUPPORTED: Final = "FieldValueNotSupported"
REQUIRED: Final = "FieldValueRequired"
TOO_LONG: Final = "FieldValueTooLong"
TOO_MANY: Final = "FieldValueTooMany"
WRONG_TYPE: Final = "FieldValueTypeInvalid"


@dataclass(frozen=True, slots=True)
class Cause:
    """One validation error: field, reason and message."""

    field: str  # "spec.replicas", "spec.containers[0].name"
    reason: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueForbidden, ...
    message: str  # e.g. 'Invalid value: -1: must be greater than or equal to 0'

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> Cause:
    return Cause(field, REQUIRED, f"Required value: {detail}" if detail else "Required value")


def invalid(field: str, value: Any, detail: str) -> Cause:
    return Cause(field, INVALID, f"Invalid value: {shown(value)}: {detail}")


def wrong_type(field: str, value: Any, detail: str) -> Cause:
    """Like ``invalid``, for a value of the wrong type."""
    return Cause(field, WRONG_TYPE, f"Invalid value: {shown(value)}: {detail}")


def immutable(field: str, value: Any) -> Cause:
    return invalid(field, value, IMMUTABLE)


def not_supported(field: str, value: Any, supported: Iterable[Any]) -> Cause:
    listed = ", ".join(quoted(each if isinstance(each, str) else shown(each)) for each in supported)
    return Cause(field, NOT_SUPPORTED, f"Unsupported value: {shown(value)}: supported values: {listed}")


def forbidden(field: str, detail: str) -> Cause:
    return Cause(field, FORBIDDEN, f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, DUPLICATE, f"Duplicate value: {shown(value)}")


def not_found(field: str, value: Any) -> Cause:
    return Cause(field, NOT_FOUND, f"Not found: {shown(value)}")


def too_long(field: str, limit: int) -> Cause:
    return Cause(field, TOO_LONG, f"Too long: may not be more than {limit} {'byte' if limit == 1 else 'bytes'}")


def too_many(field: str, actual: int, limit: int) -> Cause:
    return Cause(field, TOO_MANY, f"Too many: {actual}: must have at most {limit} {'item' if limit == 1 else 'items'}")


def shown(value: Any) -> str:
    """Format a value for a message: strings quoted, other values as JSON with sorted keys."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float):
        return number(value)
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (TypeError, orjson.JSONEncodeError):  # an integer beyond 64 bits, or nesting too deep to print
        return str(value) if isinstance(value, int) else "{}"
    for char, escape in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")):
        text = text.replace(char, escape)
    return text


def number(value: float) -> str:
    """Format a number like Go: shortest digits, an exponent only below 1e-4 and from 1e21."""
    if abs(value) < 1e21 and value.is_integer():
        return str(int(value))
    text = repr(value)
    if "e" in text:
        digits, exponent = text.split("e")
        if -5 < int(exponent) < 21:
            return f"{value:.{max(0, len(digits.replace('-', '').replace('.', '')) - 1 - int(exponent))}f}"
        return f"{digits}e{exponent[0]}{exponent[1:].rjust(2, '0')}"
    return text


_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\v": "\\v",
}


def quoted(text: str) -> str:
    """Quote a string and escape unprintable characters."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(_ESCAPES.get(char) or _escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
