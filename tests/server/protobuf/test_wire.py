from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.server.protobuf.wire import (
    BYTES,
    FIXED64,
    VARINT,
    fields,
    signed,
    varint,
)

NUMBERS = st.integers(1, (1 << 29) - 1)
UNSIGNED = st.integers(0, (1 << 64) - 1)


def encode_varint(number: int, value: int) -> bytes:
    """A field holding an unsigned number."""
    return _digits(number << 3 | VARINT) + _digits(value)


def encode_double(number: int, value: float) -> bytes:
    return _digits(number << 3 | FIXED64) + struct.pack("<d", value)


def encode_bytes(number: int, value: bytes) -> bytes:
    """A field holding text, bytes or another message."""
    return _digits(number << 3 | BYTES) + _digits(len(value)) + value


def _digits(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@settings(deadline=None)
@given(NUMBERS, UNSIGNED, st.binary(max_size=300), st.floats(allow_nan=False))
def test_encoded_fields_are_decoded(number: int, value: int, data: bytes, real: float) -> None:
    written = encode_varint(number, value) + encode_bytes(number, data) + encode_double(number, real)
    read = [(n, type, v if isinstance(v, int) else bytes(v)) for n, type, v in fields(memoryview(written))]
    assert read == [(number, VARINT, value), (number, BYTES, data), (number, FIXED64, struct.pack("<d", real))]


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        found = list(fields(memoryview(data)))
    except ValueError:
        return
    assert bool(found) == bool(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "unexpected end"),
        (b"\x80", "unexpected end"),
        (b"\xff" * 9, "unexpected end"),
        (b"\xff" * 10, "integer overflow"),
        (b"\xff" * 9 + b"\x02", "integer overflow"),
    ],
)
def test_varint_has_at_most_64_bits_in_ten_bytes(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        varint(memoryview(data), 0)
    assert varint(memoryview(b"\xff" * 9 + b"\x01"), 0) == ((1 << 64) - 1, 10)


def test_negative_numbers_are_twos_complement() -> None:
    assert [signed(value) for value in (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)] == [
        *(0, 1, (1 << 63) - 1, -(1 << 63), -1)
    ]
