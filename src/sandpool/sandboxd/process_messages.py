"""The messages of ``process.v1.ProcessService``, in the protocol buffers' wire format.

There are a dozen fields, all numbers and byte strings, so they are encoded here. The protobuf package would take more
memory than the rest of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Malformed(Exception):
    """The bytes are not a valid message."""


class ProcessConfig(NamedTuple):
    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None


class Size(NamedTuple):
    """Size of a terminal."""

    columns: int
    rows: int


class StartRequest(NamedTuple):
    config: ProcessConfig
    size: Size | None  # of the terminal; None: the process has no terminal


class WriteStdinRequest(NamedTuple):
    process: int
    data: bytes | None  # None: end of input


class SignalRequest(NamedTuple):
    process: int
    signal: int


class ResizeRequest(NamedTuple):
    process: int
    size: Size


# --- requests --------------------------------------------------------------------------------------------------------


def execute_request(data: bytes) -> ProcessConfig:
    return _config(_last(data, 1))


def start_request(data: bytes) -> StartRequest:
    fields = dict(decoded_fields(data))
    pty = fields.get(2)
    return StartRequest(_config(_as_bytes(fields.get(1, b""))), None if pty is None else _size(_as_bytes(pty), 1, 2))


def write_stdin_request(data: bytes) -> WriteStdinRequest:
    process, content = 0, None
    for number, value in decoded_fields(data):
        if number == 1:
            process = _as_number(value)
        elif number == 2:
            content = _as_bytes(value)
        elif number == 3:
            content = None
    return WriteStdinRequest(process, content)


def signal_request(data: bytes) -> SignalRequest:
    fields = dict(decoded_fields(data))
    return SignalRequest(_as_number(fields.get(1, 0)), _as_number(fields.get(2, 0)))


def resize_request(data: bytes) -> ResizeRequest:
    return ResizeRequest(_as_number(dict(decoded_fields(data)).get(1, 0)), _size(data, 2, 3))


# --- responses ------------------------------------------------------------------------------------------------------


# Fields of ours in messages of agent-sandbox, with numbers that its own future fields will hardly have.
TRUNCATED, STDOUT_BYTES, STDERR_BYTES = 1001, 1002, 1003


def execute_response(code: int, stdout: bytes, stderr: bytes, sizes: tuple[int, int] | None = None) -> bytes:
    """``sizes`` counts all bytes of stdout and of stderr if not all are in the response."""
    response = encoded_number(1, code) + _bytes(2, stdout) + _bytes(3, stderr)
    if sizes is None:
        return response
    numbers = (TRUNCATED, 1), (STDOUT_BYTES, sizes[0]), (STDERR_BYTES, sizes[1])
    return response + b"".join(encoded_number(*each) for each in numbers)


def started(process: int) -> bytes:
    return encoded_message(1, encoded_number(1, process))


def output(data: bytes, *, error: bool) -> bytes:
    # Encoded even if empty: the presence of the field selects the alternative of the oneof.
    return encoded_message(3 if error else 2, data)


def ended(code: int) -> bytes:
    return encoded_message(4, encoded_number(1, code))


# --- the wire --------------------------------------------------------------------------------------------------------


def _config(data: bytes) -> ProcessConfig:
    command: list[str] = []
    env: dict[str, str] = {}
    cwd = None
    for number, value in decoded_fields(data):
        if number == 1:
            command.append(_text(value))
        elif number == 2:
            entry = dict(decoded_fields(_as_bytes(value)))
            env[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
        elif number == 3:
            cwd = _text(value)
    return ProcessConfig(tuple(command), env, cwd)


def _size(data: bytes, columns: int, rows: int) -> Size:
    fields = dict(decoded_fields(data))
    return Size(_as_number(fields.get(columns, 0)), _as_number(fields.get(rows, 0)))


def _last(data: bytes, wanted: int) -> bytes:
    return _as_bytes(dict(decoded_fields(data)).get(wanted, b""))


def decoded_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of every field in order."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _read_varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise Malformed(f"wire type {kind}")
        if position + size > len(data):
            raise Malformed("the message is truncated")
        yield number, data[position : position + size]
        position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Malformed("unterminated varint")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are encoded as two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encoded_number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value) if value else b""


def _bytes(field: int, data: bytes) -> bytes:
    return encoded_message(field, data) if data else b""


def encoded_message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Malformed("expected bytes, got a number")
    return value


def _as_number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise Malformed("expected a number, got bytes")
    return value & 0xFFFFFFFF


def _text(value: int | bytes) -> str:
    try:
        return _as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise Malformed("text that is not UTF-8") from error
