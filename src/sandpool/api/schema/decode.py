"""Decoding of built-in kinds with the semantics of a Go API server.

Built-in kinds are not validated by schema. kube-apiserver reads the body into Go structs, fills in defaults and writes
the structs out again, and that alone already changes an object: unknown fields disappear, nulls and empty values
disappear or become what an absent field is written as, quantities and times get their one spelling. Values of the
wrong type make the whole body unreadable (400). This module does the same to decoded JSON, guided by what ``dev/core-
types`` recorded about every field. Copy-on-write and the identity skip are as in ``admit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any, Final

from sandpool.api.schema import core
from sandpool.api.schema.compiler import Compiler
from sandpool.api.schema.findings import Findings, Key
from sandpool.api.schema.govalues import (
    Decode,
    Mismatch,
    decode_int_or_string,
    decode_quantity,
    go_name,
    mismatch,
    scalar_decoder,
)
from sandpool.api.schema.shape import MISSING, Shape

_NOTHING: Final[Mapping[str, Any]] = {}
_MISSING: Final = repeat(MISSING)
_UNKNOWN: Final[tuple[None, None]] = (None, None)
_PLAIN: Final = {"string": str, "boolean": bool}
_ZERO: Final[dict[str, Any]] = {"string": "", "boolean": False, "integer": 0, "number": 0}

_JSON_SCHEMA: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
_SCHEMA_UNIONS: Final = ("JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray")


class Decoding(Compiler):
    """Compiles shapes of built-in definitions, each once."""

    def _build(self, shape: Shape) -> Decode:
        if shape.name.endswith(_SCHEMA_UNIONS):
            return self._schema_union(shape)
        if shape.int_or_string:
            return decode_quantity if shape.format == "quantity" else decode_int_or_string
        if shape.type == "object" and not shape.preserve_unknown:
            return self._map(shape) if shape.additional is not None else self._struct(shape)
        if shape.type == "array":
            return self._array(shape)
        return scalar_decoder(shape)

    def _struct(self, shape: Shape) -> Decode:
        name = shape.name.rsplit(".", 1)[-1]
        go_type = go_name(shape)
        properties = shape.properties
        decoders = {key: self.compile(each) for key, each in properties.items()}
        # By name: the Python type of values that need no decoding unless they are empty, and the decoder of all others.
        fields = {
            key: (_PLAIN.get(each.type) if not each.format else None, decoders[key]) for key, each in properties.items()
        }
        dropped = {key for key, each in properties.items() if _drops_empty(each)}
        absent = {key: value for key, each in properties.items() if (value := _when_absent(each)) is not MISSING}
        written_as_null = {key for key, value in absent.items() if value is None}
        fills: list[tuple[str, Any]] = []  # values of absent fields, decoded at first use

        def decode(value: Any, old: Any, found: Findings) -> Any:
            if type(value) is not dict:
                raise mismatch(value, go_type)
            result = value
            before = old if type(old) is dict else _NOTHING
            for (key, item), previous in zip(value.items(), map(before.get, value, _MISSING), strict=False):
                if item is previous:
                    continue
                plain, inner = fields.get(key, _UNKNOWN)
                if (item and type(item) is plain) or (item is None and key in written_as_null):
                    continue
                new: Any = MISSING
                if inner is None:
                    found.unknown(key)
                elif item is not None:
                    count = len(found) if found else 0
                    try:
                        new = inner(item, previous, found)
                    except Mismatch as problem:
                        problem.struct = problem.struct or name
                        problem.path.append(key)
                        if within := properties[key].go_within:
                            problem.path.append(within)
                        raise
                    if found and len(found) != count:
                        found.within(key, count)
                    if not new and key in dropped:
                        new = MISSING
                if new is not item:
                    if result is value:
                        result = dict(value)
                    if new is MISSING:
                        del result[key]
                    else:
                        result[key] = new
            if absent:
                if not fills:
                    fills.extend((key, _decode_absent(decoders[key], each)) for key, each in absent.items())
                for key, filled in fills:
                    if key not in result:
                        if result is value:
                            result = dict(value)
                        result[key] = filled
            return result

        return decode

    def _map(self, shape: Shape) -> Decode:
        go_type = go_name(shape)
        values = shape.additional or Shape()
        inner = self.compile(values)
        plain = _PLAIN.get(values.type) if not values.format else None
        null = _null_element(values)

        def decode(value: Any, old: Any, found: Findings) -> Any:
            if type(value) is not dict:
                raise mismatch(value, go_type)
            result = value
            before = old if type(old) is dict else _NOTHING
            for key, item in value.items():
                if type(item) is plain:
                    continue
                previous = before.get(key, MISSING)
                if item is previous:
                    continue
                count = len(found) if found else 0
                new = inner(null if item is None else item, previous, found)
                if found and len(found) != count:
                    found.within(Key(key), count)
                if new is not item:
                    if result is value:
                        result = dict(value)
                    result[key] = new
            return result

        return decode

    def _array(self, shape: Shape) -> Decode:
        go_type = go_name(shape)
        items = shape.items or Shape()
        inner = self.compile(items)
        plain = _PLAIN.get(items.type) if not items.format else None
        null = _null_element(items)

        def decode(value: Any, old: Any, found: Findings) -> Any:
            if type(value) is not list:
                raise mismatch(value, go_type)
            result = value
            known = {id(item) for item in old} if old and type(old) is list else None
            for index, item in enumerate(value):
                if type(item) is plain or (known and id(item) in known):
                    continue
                count = len(found) if found else 0
                new = inner(null if item is None else item, MISSING, found)
                if found and len(found) != count:
                    found.within(index, count)
                if new is not item:
                    if result is value:
                        result = list(value)
                    result[index] = new
            return result

        return decode

    def _schema_union(self, shape: Shape) -> Decode:
        """A JSON schema, or a boolean or list in its place. Unknown fields are dropped silently."""
        inner = self.compile(core.definition(_JSON_SCHEMA))

        def decode(value: Any, old: Any, found: Findings) -> Any:
            if type(value) is dict:
                return inner(value, old, Findings())
            if type(value) is list:
                decoded = [decode(item, MISSING, found) for item in value]
                return value if all(new is item for new, item in zip(decoded, value, strict=True)) else decoded
            return value

        return decode


def _decode_absent(decode: Decode, value: Any) -> Any:
    return value if value is None else decode(value, MISSING, Findings())


def _when_absent(shape: Shape) -> Any:
    """The encoded value of an absent field; MISSING if it is omitted."""
    if shape.default is MISSING or shape.default is None:
        return None if shape.zero == "null" else MISSING
    return MISSING if shape.zero == "omit" else shape.default


def _drops_empty(shape: Shape) -> bool:
    """Whether an empty value is omitted: strings, numbers, lists and maps, but not structs."""
    if shape.zero == "keep" or shape.int_or_string or shape.preserve_unknown:
        return False
    if shape.type == "array" or shape.additional is not None:
        return True
    if shape.type not in _ZERO or shape.zero == "null":
        return False
    return shape.zero == "omit" or shape.default is MISSING or shape.default != _ZERO[shape.type]


def _null_element(shape: Shape) -> Any:
    """The zero value that replaces a null in a list or map."""
    if shape.int_or_string:
        return "0" if shape.format == "quantity" else 0
    if shape.type == "object" and not shape.preserve_unknown:
        return {}
    return [] if shape.type == "array" else _ZERO.get(shape.type)
