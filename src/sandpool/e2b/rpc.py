"""The Connect protocol with JSON messages, as far as bytes and fields go: no HTTP is in here.

A unary call is one JSON document each way. The messages of a stream have a head of five bytes, a byte of flags and the
length; the last one of an answer carries the flag END and the error, if there is one. Binary protobuf is not spoken,
because E2B's packages only send JSON.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

#: Bytes of one message.
MAX_MESSAGE: Final = 4 << 20
COMPRESSED: Final = 1
END: Final = 2
_HEAD: Final = 5


class Code(StrEnum):
    """The errors of the protocol that the endpoint uses."""

    INVALID_ARGUMENT = "invalid_argument"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    FAILED_PRECONDITION = "failed_precondition"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"


#: The HTTP status of each error of a unary call.
STATUS: Final[Mapping[Code, int]] = {
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
}


class RpcError(Exception):
    """A call that failed."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def document(self) -> dict[str, str]:
        return {"code": self.code.value, "message": self.message}


class Message:
    """A message, and readers of its fields. A field may have its JSON name or that of the protocol definition; a field
    of the wrong type raises ``RpcError``."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    @classmethod
    def decode(cls, data: bytes | bytearray) -> Message:
        """Raises ``RpcError`` for anything that is no JSON object."""
        try:
            document = orjson.loads(data or b"{}")
        except orjson.JSONDecodeError:
            raise _invalid("the message is not JSON") from None
        if not isinstance(document, dict):
            raise _invalid("the message is not a JSON object")
        return cls(document)

    def has(self, name: str) -> bool:
        return self._field(name) is not None

    def text(self, name: str) -> str:
        value = self._field(name)
        if value is None:
            return ""
        if not isinstance(value, str) or "\0" in value:
            raise _invalid(f"{name} must be text")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._field(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _invalid(f"{name} must be true or false")
        return value

    def number(self, name: str) -> int:
        """An unsigned integer of 32 bits, which JSON may have as text."""
        value = self._field(name)
        if value is None:
            return 0
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 10:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise _invalid(f"{name} must be a number")
        return value

    def data(self, name: str) -> bytes:
        value = self._field(name)
        if value is None:
            return b""
        try:
            return base64.b64decode(value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4), validate=True)
        except (AttributeError, ValueError, binascii.Error):
            raise _invalid(f"{name} must be base64") from None

    def message(self, name: str) -> Message:
        value = self._field(name)
        if value is None:
            return Message({})
        if not isinstance(value, dict):
            raise _invalid(f"{name} must be an object")
        return Message(value)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._field(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, str) and "\0" not in each for each in value):
            raise _invalid(f"{name} must be a list of texts")
        return tuple(value)

    def text_map(self, name: str) -> dict[str, str]:
        value = self._field(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _invalid(f"{name} must be a map of texts")
        for each, content in value.items():
            if not isinstance(content, str) or "\0" in content:
                raise _invalid(f"{name} must be a map of texts")
            if not each or "=" in each or "\0" in each:
                raise _invalid(f"{name} has a name that cannot be one: {each!r}")
        return dict(value)

    def _field(self, name: str) -> Any:
        value = self._document.get(name)
        return self._document.get(_snake(name)) if value is None else value


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _invalid(message: str) -> RpcError:
    return RpcError(Code.INVALID_ARGUMENT, message)


class Envelope(NamedTuple):
    """A message of a stream."""

    flags: int
    data: bytes


def envelope(data: bytes, flags: int = 0) -> bytes:
    """A message of a stream as bytes."""
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


def end_of_stream(error: RpcError | None = None) -> bytes:
    """The last message of an answer."""
    return envelope(orjson.dumps({} if error is None else {"error": error.document}), END)


class EnvelopeReader:
    """Takes a stream apart as it arrives. What follows a message that is refused is not read."""

    def __init__(self, most: int = MAX_MESSAGE) -> None:
        self.most = most
        self._buffer = bytearray()
        self._refusal: RpcError | None = None

    def feed(self, data: bytes) -> list[Envelope]:
        """Return the messages that are complete. Raises ``RpcError``, after all messages before were returned."""
        self._raise_refusal()
        self._buffer += data
        found = []
        while len(self._buffer) >= _HEAD:
            flags, length = self._buffer[0], int.from_bytes(self._buffer[1:_HEAD], "big")
            if flags & COMPRESSED:
                self._refusal = RpcError(Code.UNIMPLEMENTED, "compressed messages are not supported")
                break
            if length > self.most:
                self._refusal = RpcError(Code.RESOURCE_EXHAUSTED, f"a message is larger than {self.most} bytes")
                break
            if len(self._buffer) < _HEAD + length:
                break
            found.append(Envelope(flags, bytes(self._buffer[_HEAD : _HEAD + length])))
            del self._buffer[: _HEAD + length]
        if not found:
            self._raise_refusal()
        return found

    def finish(self) -> None:
        """Raises ``RpcError`` if the stream ended within a message, or after one that is refused."""
        self._raise_refusal()
        if self._buffer:
            raise _invalid("the stream ended within a message")

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            raise self._refusal
