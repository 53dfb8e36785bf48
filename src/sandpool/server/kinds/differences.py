"""The differences between two JSON values, for error messages about immutable fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sandpool.api.causes import shown


def differences(old: Any, new: Any, path: str = "") -> str:
    """List the differing leaves, each as one line with the old value and one with the new value."""
    return "\n".join(_lines(old, new, path))


def _lines(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _lines(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _lines(before, after, f"{path}[{index}]")
    elif old != new:
        if old is not None:
            yield f"- {path}: {shown(old)}"
        if new is not None:
            yield f"+ {path}: {shown(new)}"
