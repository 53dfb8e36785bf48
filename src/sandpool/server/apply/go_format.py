"""Go's formatting of values: in messages, and in the JSON of path elements."""

from __future__ import annotations

from typing import Any, Final

import orjson

from sandpool.api.causes import number, quoted

# encoding/json escapes these so that JSON can be embedded in HTML.
_HTML_SAFE: Final = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def json_text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode().translate(_HTML_SAFE)


def go_syntax(value: Any) -> str:
    """Format a value as ``%#v`` does (Go-syntax representation)."""
    if isinstance(value, dict):
        inner = ", ".join(f"{quoted(key)}:{go_syntax(value[key])}" for key in sorted(value))
        return f"map[string]interface {{}}{{{inner}}}"
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(map(go_syntax, value)) + "}"
    if value is None:
        return "interface {}(nil)"
    return quoted(value) if isinstance(value, str) else scalar(value)


def scalar(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else str(value)
