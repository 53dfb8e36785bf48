"""The mistakes validation reports, in kube-apiserver's words: people search for them and clients match on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from sandpool.api.causes import Cause

IMMUTABLE = "field is immutable"


def quoted(text: str) -> str:
    """A string as error messages show it."""
    return '"' + "".join(_ESCAPES.get(char) or _escape(char) for char in text) + '"'


_ESCAPES = {
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


def _escape(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shown(value: Any) -> str:
    """A value as error messages show it: strings quoted, everything else as JSON."""
    return quoted(value) if isinstance(value, str) else orjson.dumps(value).decode()


def required(field: str, detail: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def invalid(field: str, value: Any, detail: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown(value)}: {detail}")


def immutable(field: str, value: Any) -> Cause:
    return invalid(field, value, IMMUTABLE)


def not_supported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    listed = ", ".join(map(quoted, supported))
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {shown(value)}: supported values: {listed}")


def forbidden(field: str, detail: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {shown(value)}")


def not_found(field: str, value: Any) -> Cause:
    return Cause(field, "FieldValueNotFound", f"Not found: {shown(value)}")


def too_long(field: str, limit: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, actual: int, limit: int) -> Cause:
    return Cause(field, "FieldValueTooMany", f"Too many: {actual}: must have at most {limit} items")
