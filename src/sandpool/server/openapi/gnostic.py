"""The protobuf form of an OpenAPI 2 document, the only one kubectl before 1.29 asks for.

Field numbers are those of the message openapi.v2.Document, which the gnostic project defines. Everything that is not
a fixed field (the x-kubernetes extensions, enumerations) travels as YAML text, of which JSON is a subset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from sandpool.api.resource import Object
from sandpool.server.protobuf.wire import encode_bytes, encode_double, encode_varint

_SCHEMA_TEXTS = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_SCHEMA_DOUBLES = {"multipleOf": 6, "maximum": 7, "minimum": 9}
_SCHEMA_NUMBERS = {
    "exclusiveMaximum": 8,
    "exclusiveMinimum": 10,
    "maxLength": 11,
    "minLength": 12,
    "maxItems": 14,
    "minItems": 15,
    "uniqueItems": 16,
    "maxProperties": 17,
    "minProperties": 18,
}
_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
# Numbers of the fields required, in, name, type and uniqueItems, which differ with the place of a parameter.
_QUERY_PARAMETER = {"required": 1, "in": 2, "name": 4, "type": 6, "uniqueItems": 20}
_PATH_PARAMETER = {"required": 1, "in": 2, "name": 4, "type": 5, "uniqueItems": 19}


def encode(document: Object) -> bytes:
    """The message Document for a document as ``v2.document`` makes it."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    paths = _named(2, document["paths"], _path_item)
    definitions = _named(1, document["definitions"], _schema)
    return (
        _text(1, document["swagger"])
        + encode_bytes(2, info)
        + encode_bytes(8, paths)
        + encode_bytes(9, definitions)
        + encode_bytes(12, _named(1, document["security"][0], lambda scopes: b""))
        + encode_bytes(13, _named(1, document["securityDefinitions"], _api_key))
    )


def _path_item(item: Object) -> bytes:
    methods = b"".join(
        encode_bytes(_METHODS[method], _operation(item[method])) for method in _METHODS if method in item
    )
    return methods + b"".join(encode_bytes(9, _parameter(parameter)) for parameter in item["parameters"])


def _operation(operation: Object) -> bytes:
    return (
        _text(5, operation["operationId"])
        + _texts(6, operation["produces"])
        + _texts(7, operation["consumes"])
        + b"".join(encode_bytes(8, _parameter(parameter)) for parameter in operation["parameters"])
        + encode_bytes(9, _named(1, operation["responses"], _response))
        + _extensions(13, operation)
    )


def _parameter(parameter: Object) -> bytes:
    """A ParametersItem: a choice within a choice within a choice."""
    if parameter["in"] == "body":
        body = _text(2, parameter["name"]) + _text(3, "body") + encode_bytes(5, _schema(parameter["schema"]))
        if parameter.get("required"):
            body += encode_varint(4, 1)
        return encode_bytes(1, encode_bytes(1, body))
    numbers = _PATH_PARAMETER if parameter["in"] == "path" else _QUERY_PARAMETER
    content = b"".join(
        encode_varint(number, 1) if parameter[key] is True else _text(number, parameter[key])
        for key, number in numbers.items()
        if key in parameter
    )
    place = 4 if parameter["in"] == "path" else 3
    return encode_bytes(1, encode_bytes(2, encode_bytes(place, content)))


def _response(response: Object) -> bytes:
    content = _text(1, response["description"])
    if "schema" in response:
        content += encode_bytes(2, encode_bytes(1, _schema(response["schema"])))
    return encode_bytes(1, content)


def _schema(schema: Mapping[str, Any]) -> bytes:
    parts = [_text(number, schema[key]) for key, number in _SCHEMA_TEXTS.items() if key in schema]
    parts += [encode_double(number, schema[key]) for key, number in _SCHEMA_DOUBLES.items() if key in schema]
    parts += [encode_varint(number, int(schema[key])) for key, number in _SCHEMA_NUMBERS.items() if key in schema]
    parts.append(_texts(19, schema.get("required", ())))
    parts += [encode_bytes(20, _any(value)) for value in schema.get("enum", ())]
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        parts.append(encode_bytes(21, encode_bytes(1, _schema(additional))))
    elif additional is not None:
        parts.append(encode_bytes(21, encode_varint(2, int(additional))))
    if "type" in schema:
        parts.append(encode_bytes(22, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(encode_bytes(23, encode_bytes(1, _schema(schema["items"]))))
    if "properties" in schema:
        parts.append(encode_bytes(25, _named(1, schema["properties"], _schema)))
    parts.append(_extensions(31, schema))
    return b"".join(parts)


def _api_key(definition: Object) -> bytes:
    return encode_bytes(2, _text(1, definition["type"]) + _text(2, definition["name"]) + _text(3, definition["in"]))


def _named(number: int, members: Mapping[str, Any], encode_one: Callable[[Any], bytes]) -> bytes:
    """A map, as gnostic writes it: a repeated message of name and value."""
    return b"".join(
        encode_bytes(number, _text(1, name) + encode_bytes(2, encode_one(member))) for name, member in members.items()
    )


def _extensions(number: int, obj: Mapping[str, Any]) -> bytes:
    return _named(number, {key: value for key, value in obj.items() if key.startswith("x-")}, _any)


def _any(value: Any) -> bytes:
    return encode_bytes(2, orjson.dumps(value) + b"\n")


def _text(number: int, text: str) -> bytes:
    return encode_bytes(number, text.encode())


def _texts(number: int, texts: Iterable[str]) -> bytes:
    return b"".join(_text(number, text) for text in texts)
