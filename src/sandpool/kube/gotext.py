"""How Go prints decoded JSON: kube-apiserver's messages quote values that way."""

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
    """The name of a value's type."""
    return _TYPES.get(type(value), "%!s(<nil>)")


def go_value(value: Any) -> str:
    """A value as ``%v`` prints it."""
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
    """A value as ``%s`` prints it."""
    return value if isinstance(value, str) else f"%!s({go_type(value)}={go_value(value)})"
