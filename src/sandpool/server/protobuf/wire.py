"""The protobuf wire format: numbered fields, each a varint, a fixed-size number or a run of bytes."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """(number, wire type, value) of each field, in order; fixed-size numbers as their bytes.

    Raises ``ValueError`` unless the data is well-formed to the last byte.
    """
    position, end = 0, len(data)
    while position < end:
        tag, position = varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError(f"illegal field number {number}")
        if wire_type == VARINT:
            value, position = varint(data, position)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            size, position = varint(data, position)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise ValueError(f"illegal wire type {wire_type} of field {number}")
        if size > end - position:
            raise ValueError("unexpected end of data")
        yield number, wire_type, data[position : position + size]
        position += size


def varint(data: memoryview, start: int) -> tuple[int, int]:
    """Decode the unsigned varint at a position, of at most ten bytes; returns it and the position after it."""
    result = 0
    for index, byte in enumerate(data[start : start + 10]):
        result |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if result >= 1 << 64:
                raise ValueError("integer overflow")
            return result, start + index + 1
    raise ValueError("integer overflow" if len(data) - start >= 10 else "unexpected end of data")


def signed(value: int) -> int:
    """Interpret a 64-bit varint as two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value
