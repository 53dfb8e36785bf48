"""How Go writes values down: in messages, which clients see, and as JSON, where it becomes part of names."""

from __future__ import annotations

from typing import Any, Final

import orjson

_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


# encoding/json spells these so that JSON can stand in an HTML page.
_HTML_SAFE: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def json_text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode().translate(_HTML_SAFE)


def quoted(text: str) -> str:
    """``%q``."""
    return '"' + "".join(map(_quoted_character, text)) + '"'


def _quoted_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(value: Any) -> str:
    """``%v`` of a decoded JSON value."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{plain(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(plain, value)) + "]"
    if value is None:
        return "<nil>"
    return value if isinstance(value, str) else scalar(value)


def verbose(value: Any) -> str:
    """``%#v`` of a decoded JSON value."""
    if isinstance(value, dict):
        inner = ", ".join(f"{quoted(key)}:{verbose(value[key])}" for key in sorted(value))
        return f"map[string]interface {{}}{{{inner}}}"
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(map(verbose, value)) + "}"
    if value is None:
        return "interface {}(nil)"
    return quoted(value) if isinstance(value, str) else scalar(value)


def type_name(value: Any) -> str:
    """``%T`` of a decoded JSON value."""
    if isinstance(value, dict):
        return "map[string]interface {}"
    if isinstance(value, list):
        return "[]interface {}"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if value is None:
        return "<nil>"
    return "float64" if isinstance(value, float) else "int64"


def scalar(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
    return str(value)
