"""gRPC server reflection, so that ``grpcurl`` and the like need no .proto file.

The description of a service is itself a protocol buffer with few fields, which is encoded here. The package
grpcio-reflection depends on protobuf, which takes more memory than the rest of sandboxd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from sandpool.sandboxd.process_messages import (
    STDERR_BYTES,
    STDOUT_BYTES,
    TRUNCATED,
    decoded_fields,
    encoded_message,
    encoded_number,
)

#: Both versions of the reflection service; their messages are equal.
SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
PACKAGE = "process.v1"
FILE = "process/v1/process.proto"

# Fields of our messages: name, number, type. "*" is a list, "?" is one that may be missing, "|" is one of several.
_MESSAGES = {
    "ProcessConfig": (("command", 1, "string*"), ("env_vars", 2, "EnvVarsEntry*"), ("cwd", 3, "string?")),
    "ExecuteRequest": (("config", 1, "ProcessConfig"),),
    "ExecuteResponse": (
        ("exit_code", 1, "int32"),
        ("stdout", 2, "bytes"),
        ("stderr", 3, "bytes"),
        ("truncated", TRUNCATED, "bool"),
        ("stdout_bytes", STDOUT_BYTES, "uint64"),
        ("stderr_bytes", STDERR_BYTES, "uint64"),
    ),
    "PTY": (("cols", 1, "uint32"), ("rows", 2, "uint32")),
    "StartRequest": (("config", 1, "ProcessConfig"), ("pty", 2, "PTY")),
    "InitEvent": (("process_id", 1, "int32"),),
    "ExitEvent": (("exit_code", 1, "int32"),),
    "StartResponse": (
        ("init", 1, "InitEvent|"),
        ("stdout", 2, "bytes|"),
        ("stderr", 3, "bytes|"),
        ("exit", 4, "ExitEvent|"),
    ),
    "Empty": (),
    "WriteStdinRequest": (("process_id", 1, "int32"), ("input", 2, "bytes|"), ("eof", 3, "Empty|")),
    "WriteStdinResponse": (),
    "SendSignalRequest": (("process_id", 1, "int32"), ("signal", 2, "int32")),
    "SendSignalResponse": (),
    "ResizeTTYRequest": (("process_id", 1, "int32"), ("cols", 2, "uint32"), ("rows", 3, "uint32")),
    "ResizeTTYResponse": (),
}
_ENTRY = ("EnvVarsEntry", (("key", 1, "string"), ("value", 2, "string")))
_METHODS = ("Execute", "Start", "WriteStdin", "SendSignal", "ResizeTTY")
_STREAMED = "Start"
_TYPES = {"uint64": 4, "int32": 5, "bool": 8, "string": 9, "message": 11, "bytes": 12, "uint32": 13}
_ONE, _MANY = 1, 3
_NOT_FOUND = 5


def handlers(service: str) -> list[grpc.GenericRpcHandler]:
    """Return handlers for a server that offers ``service``."""

    def answer(requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield encoded_message(2, request) + _answer(request, service)

    method = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(answer)}
    return [grpc.method_handlers_generic_handler(name, method) for name in SERVICES]


def description(service: str) -> bytes:
    """Return the FileDescriptorProto of the service."""
    messages = [_described(name, columns) for name, columns in _MESSAGES.items()]
    methods = b"".join(encoded_message(2, _method(name)) for name in _METHODS)
    offered = _text(1, service.removeprefix(f"{PACKAGE}.")) + methods
    return b"".join(
        [
            _text(1, FILE),
            _text(2, PACKAGE),
            *(encoded_message(4, each) for each in messages),
            encoded_message(6, offered),
            _text(12, "proto3"),
        ]
    )


def _answer(request: bytes, service: str) -> bytes:
    for number, value in decoded_fields(request):
        if number == 7:  # list_services
            names = (service, *SERVICES)
            return encoded_message(6, b"".join(encoded_message(1, _text(1, name)) for name in names))
        wanted = value.decode(errors="replace") if isinstance(value, bytes) else ""
        if (number == 3 and wanted == FILE) or (number == 4 and wanted.startswith(f"{PACKAGE}.")):
            return encoded_message(4, encoded_message(1, description(service)))
        if number in (3, 4, 5, 6):
            return encoded_message(7, encoded_number(1, _NOT_FOUND) + _text(2, "no file or symbol of this name"))
    return encoded_message(7, encoded_number(1, _NOT_FOUND) + _text(2, "unsupported request"))


def _described(name: str, columns: tuple[tuple[str, int, str], ...]) -> bytes:
    # proto3 represents an optional field as the only member of a synthetic oneof.
    alternatives = [f"_{column[0]}" for column in columns if column[2].endswith("?")]
    if any(column[2].endswith("|") for column in columns):
        alternatives = ["event"]
    nested = b""
    if any(column[2].startswith(_ENTRY[0]) for column in columns):
        is_map = encoded_message(7, encoded_number(7, 1))
        nested = encoded_message(3, _described(*_ENTRY) + is_map)
    return b"".join(
        [
            _text(1, name),
            *(encoded_message(2, _field(name, *column)) for column in columns),
            nested,
            *(encoded_message(8, _text(1, each)) for each in alternatives),
        ]
    )


def _field(message: str, name: str, number: int, kind: str) -> bytes:
    plain = kind.rstrip("*?|")
    described = _text(1, name) + encoded_number(3, number) + encoded_number(4, _MANY if kind.endswith("*") else _ONE)
    described += encoded_number(5, _TYPES.get(plain, _TYPES["message"]))
    if plain not in _TYPES:
        outer = f"{message}." if plain == _ENTRY[0] else ""
        described += _text(6, f".{PACKAGE}.{outer}{plain}")
    if kind.endswith(("?", "|")):
        described += b"\x48\x00"  # oneof_index 0; encoded_number leaves out a zero
    return described + (encoded_number(17, 1) if kind.endswith("?") else b"")


def _method(name: str) -> bytes:
    types = _text(2, f".{PACKAGE}.{name}Request") + _text(3, f".{PACKAGE}.{name}Response")
    return _text(1, name) + types + (encoded_number(6, 1) if name == _STREAMED else b"")


def _text(field: int, text: str) -> bytes:
    return encoded_message(field, text.encode())
