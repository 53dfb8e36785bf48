"""A minimal protobuf encoder and decoder for tests."""

from __future__ import annotations

from typing import Any


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def varint(value: int) -> bytes:
    rest, low = divmod(value, 128)
    return bytes([low]) if not rest else bytes([low | 128]) + varint(rest)


def read(data: bytes) -> dict[int, Any]:
    """Return numbers and byte strings by field number; of a repeated field the last one."""
    fields: dict[int, Any] = {}
    value: Any
    rest = memoryview(data)
    while rest:
        key, rest = _take(rest)
        value, rest = _take(rest)
        if key & 7 == 2:
            value, rest = bytes(rest[:value]), rest[value:]
        fields[key >> 3] = value
    return fields


def _take(data: memoryview) -> tuple[Any, memoryview]:
    value = shift = 0
    for index, byte in enumerate(data):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, data[index + 1 :]
    raise ValueError("a number without end")
