"""Decodes a protobuf request body to the equivalent JSON object.

kubectl and other client-go programs send built-in kinds in this form, and do not fall back to JSON when it is refused.
A body is an envelope (``k8s\\0`` and a runtime.Unknown that names the kind) around the message of the kind. The result
is the object that the same client would have sent as JSON: Go writes the zero value of every field that is not a
pointer, unless its JSON tag says ``omitempty``.

Bodies are untrusted: every length, number, type and depth is checked, and the growth of a small body is bounded.
Errors raise ``ValueError``. Unknown fields are skipped, as protobuf requires.
"""

from __future__ import annotations

import base64
import math
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from sandpool.api.resource import Object
from sandpool.server.protobuf.messages import Field, Message, message, message_of_kind, zero
from sandpool.server.protobuf.wire import BYTES, FIXED64, VARINT, fields, signed, varint

MAGIC = b"k8s\x00"
# Far beyond real objects: schemas of CRDs nest a few dozen levels, and a large pod has a few hundred messages.
_MAX_DEPTH = 100
_MAX_MESSAGES = 200_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA = "apiextensions/v1.JSONSchemaProps"


def decode(body: bytes, default: tuple[str, str] = ("", "")) -> Object:
    """Decode a body. ``default`` is (apiVersion, kind) for an envelope that names none."""
    if not body.startswith(MAGIC):
        raise ValueError("the data does not begin with the bytes of a Kubernetes protobuf message")
    api_version, kind, raw = _open(memoryview(body)[len(MAGIC) :])
    if not api_version and not kind:
        api_version, kind = default
    found = message_of_kind(api_version, kind)
    if found is None:
        raise ValueError(f'no kind "{kind}" is registered for version "{api_version}"')
    obj: Object = {"kind": kind, "apiVersion": api_version}
    _Decoder().read(found, raw, obj, depth=0)
    return obj


def _open(data: memoryview) -> tuple[str, str, memoryview]:
    """apiVersion, kind and content of the envelope."""
    texts = {"apiVersion": "", "kind": ""}
    raw = memoryview(b"")
    for number, wire_type, value in fields(data):
        if number == 1:
            for inner_number, inner_type, inner in fields(_bytes(value, wire_type, "typeMeta")):
                if inner_number in (1, 2):
                    name = ("apiVersion", "kind")[inner_number - 1]
                    texts[name] = _text(_bytes(inner, inner_type, name))
        elif number == 2:
            raw = _bytes(value, wire_type, "raw")
        elif number == 3 and _bytes(value, wire_type, "contentEncoding"):
            raise ValueError("the content of the message is encoded in a way that is not supported")
    return texts["apiVersion"], texts["kind"], raw


class _Decoder:
    """Decodes the messages of one body, and limits their number."""

    def __init__(self) -> None:
        self._messages_left = _MAX_MESSAGES

    def read(self, spec: Message, data: memoryview, into: Object, depth: int) -> Object:
        """Decode a message into a JSON object. A repeated field is replaced or merged, as protobuf specifies."""
        self._messages_left -= 1
        if depth > _MAX_DEPTH or self._messages_left < 0:
            raise ValueError("the message is too deep or has too many parts")
        for name, value in spec.zeros.items():
            into.setdefault(name, value)
        for number, wire_type, raw in fields(data):
            field = spec.fields.get(number)
            if field is not None:
                self._read_field(spec, field, wire_type, raw, into, depth)
        return into

    def _read_field(
        self, spec: Message, field: Field, wire_type: int, raw: int | memoryview, into: Object, depth: int
    ) -> None:
        where = f"{spec.name}.{field.name}"
        if field.inline:
            self.read(message(field.type), _bytes(raw, wire_type, where), into, depth + 1)
        elif field.is_map:
            key, value = self._entry(field, _bytes(raw, wire_type, where), where, depth)
            into.setdefault(field.name, {})[key] = value
        elif field.repeated:
            items = into.setdefault(field.name, [])
            if wire_type == BYTES and field.type in ("int", "bool"):
                items.extend(self._packed(field.type, _bytes(raw, wire_type, where), where))
            else:
                items.append(self._value(field.type, wire_type, raw, where, depth))
        else:
            value = self._value(field.type, wire_type, raw, where, depth, into.get(field.name))
            if value is None or (field.omit_zero and not value) or (field.omit_empty and value == {}):
                into.pop(field.name, None)
            else:
                into[field.name] = value

    def _value(
        self, type: str, wire_type: int, raw: int | memoryview, where: str, depth: int, before: Any = None
    ) -> Any:
        """Decode one value. None means JSON null, which is the same as absent."""
        match type:
            case "string":
                return _text(_bytes(raw, wire_type, where))
            case "bytes":
                return base64.b64encode(_bytes(raw, wire_type, where)).decode()
            case "bool":
                return _number(raw, wire_type, where) != 0
            case "int":
                return _number(raw, wire_type, where)
            case "double":
                return _double(raw, wire_type, where)
        data = _bytes(raw, wire_type, where)
        match type:
            case "time" | "microtime":
                return _time(data, where, micro=type == "microtime")
            case "quantity":
                return _text(_bytes(_only(data, 1, BYTES, b""), BYTES, where)) or "0"
            case "intstr":
                return _int_or_string(data, where)
            case "json":
                return _json(_bytes(_only(data, 1, BYTES, b""), BYTES, where), where)
            case "strings":
                return [_text(_bytes(item, wire, where)) for number, wire, item in fields(data) if number == 1]
            case "schema-or-bool" | "schema-or-array" | "schema-or-strings":
                return self._schema_or(type, data, where, depth)
        merged = before if isinstance(before, dict) else {}
        return self.read(message(type), data, merged, depth + 1)

    def _entry(self, field: Field, data: memoryview, where: str, depth: int) -> tuple[str, Any]:
        key, value = "", zero(field.type)
        for number, wire_type, raw in fields(data):
            if number == 1:
                key = _text(_bytes(raw, wire_type, where))
            elif number == 2:
                value = self._value(field.type, wire_type, raw, where, depth)
        return key, value

    def _packed(self, type: str, data: memoryview, where: str) -> list[Any]:
        values, position = [], 0
        while position < len(data):
            number, position = varint(data, position)
            values.append(self._value(type, VARINT, number, where, 0))
        return values

    def _schema_or(self, type: str, data: memoryview, where: str, depth: int) -> Any:
        """Decode a union in a CRD schema: a schema, or a boolean or list in its place."""
        schema_number = 2 if type == "schema-or-bool" else 1
        schema: Object | None = None
        others: list[Any] = []
        for number, wire_type, raw in fields(data):
            if number == schema_number:
                schema = self.read(message(_SCHEMA), _bytes(raw, wire_type, where), schema or {}, depth + 1)
            elif number in (1, 2):
                other = {"schema-or-bool": "bool", "schema-or-array": _SCHEMA, "schema-or-strings": "string"}[type]
                others.append(self._value(other, wire_type, raw, where, depth))
        if type == "schema-or-bool":
            return schema if schema is not None else bool(others and others[-1])
        return others or schema


def _bytes(raw: int | memoryview | bytes, wire_type: int, where: str) -> memoryview:
    if wire_type != BYTES or isinstance(raw, int):
        raise ValueError(f"wrong wire type {wire_type} for field {where}")
    return memoryview(raw)


def _number(raw: int | memoryview, wire_type: int, where: str) -> int:
    if wire_type != VARINT or not isinstance(raw, int):
        raise ValueError(f"wrong wire type {wire_type} for field {where}")
    return signed(raw)


def _double(raw: int | memoryview, wire_type: int, where: str) -> int | float:
    if wire_type != FIXED64 or isinstance(raw, int):
        raise ValueError(f"wrong wire type {wire_type} for field {where}")
    (value,) = struct.unpack("<d", raw)
    if not math.isfinite(value):
        raise ValueError(f"field {where} is not a finite number")
    # Go's JSON has no 1.0, and messages quote the limits of a schema.
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(value)


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"a string is not UTF-8: {error.reason}") from None


def _only(data: memoryview, wanted: int, wire_type: int, default: Any) -> Any:
    """The last value of one field of a message; all other fields are ignored."""
    found = default
    for number, wire, value in fields(data):
        if number == wanted:
            if wire != wire_type:
                raise ValueError(f"wrong wire type {wire} for field {wanted}")
            found = value
    return found


def _time(data: memoryview, where: str, *, micro: bool) -> str | None:
    """A Timestamp message as RFC 3339. An empty message is the zero time, which is null in JSON."""
    if not data:
        return None
    seconds, nanos = signed(_only(data, 1, VARINT, 0)), signed(_only(data, 2, VARINT, 0))
    try:
        moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise ValueError(f"field {where} is out of the range of times") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0") + (f".{moment.microsecond:06d}Z" if micro else "Z")


def _int_or_string(data: memoryview, where: str) -> int | str:
    if _only(data, 1, VARINT, 0) == 0:
        return signed(_only(data, 2, VARINT, 0))
    return _text(_bytes(_only(data, 3, BYTES, b""), BYTES, where))


def _json(data: memoryview, where: str) -> Any:
    if not data:
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"field {where} is not JSON: {error}") from None
