"""Formats JSON values as Go does. kube-apiserver's messages contain values in this format."""

from __future__ import annotations

from typing import Any

_TYPES = {
    dict: "map[string]interface {}",
    list: "[]interface {}",
    str: "string",
    bool: "bool",
    int: "int64",
    float: "float64",
}


def go_type(value: Any) -> str:
    """The Go type name of a value."""
    return _TYPES.get(type(value), "%!s(<nil>)")


def go_value(value: Any) -> str:
    """Format a value like Go's ``%v``."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{name}:{go_value(value[name])}" for name in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(go_value, value)) + "]"
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def go_string(value: Any) -> str:
    """Format a value like Go's ``%s``."""
    return value if isinstance(value, str) else f"%!s({go_type(value)}={go_value(value)})"
