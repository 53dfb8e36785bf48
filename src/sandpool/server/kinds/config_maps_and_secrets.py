"""ConfigMap and Secret: data for pods, as files or environment variables."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, required, too_long
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import drop, fill_empty
from sandpool.server.kinds.strategy import KindStrategy

SIZE_LIMIT: Final = 1024 * 1024
_ACCOUNT_ANNOTATION: Final = "kubernetes.io/service-account.name"
# The keys that each type of Secret requires.
_NEEDED: Final = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_JSON_TYPES: Final = ("kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson")


def decoded_size(data: Mapping[str, str]) -> int:
    """The decoded size of base64 values."""
    return sum(len(value) // 4 * 3 - value[-2:].count("=") for value in data.values())


def _validate_keys(data: Mapping[str, Any], field: str) -> Iterator[Cause]:
    for key in data:
        yield from (invalid(f"{field}[{key}]", key, why) for why in names.config_key(key))


def _validate_frozen(new: Object, old: Object, fields: tuple[str, ...]) -> Iterator[Cause]:
    """Refuse changes of an object whose ``immutable`` is set, including clearing it."""
    if not old.get("immutable"):
        return
    why = "field is immutable when `immutable` is set"
    if not new.get("immutable"):
        yield forbidden("immutable", why)
    for field in fields:
        if (new.get(field) or {}) != (old.get(field) or {}):
            yield forbidden(field, why)


class ConfigMapStrategy(KindStrategy):
    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = list(_validate_frozen(new, old, ("data", "binaryData"))) if old is not None else []
        data, binary = new.get("data") or {}, new.get("binaryData") or {}
        found += _validate_keys(data, "data")
        for key in data.keys() & binary.keys():
            found.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
        found += _validate_keys(binary, "binaryData")
        if sum(len(value.encode()) for value in data.values()) + decoded_size(binary) > SIZE_LIMIT:
            found.append(too_long("[]", SIZE_LIMIT))  # kube-apiserver's name for the whole object
        return found


class SecretStrategy(KindStrategy):
    field_labels = frozenset({"type"})

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_empty(obj, {"type": "Opaque"})
        if plain := obj.get("stringData"):
            encoded = {key: b64encode(value.encode()).decode() for key, value in plain.items()}
            obj = {**obj, "data": {**(obj.get("data") or {}), **encoded}}
        return drop(obj, "stringData")

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found: list[Cause] = []
        if old is not None:
            if new.get("type") != old.get("type"):
                found.append(immutable("type", new.get("type")))
            found += _validate_frozen(new, old, ("data",))
        return [*found, *_validate_secret(new)]

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        return {"type": obj.get("type") or ""}


def _validate_secret(secret: Object) -> Iterator[Cause]:
    data, kind = secret.get("data") or {}, secret.get("type")
    yield from _validate_keys(data, "data")
    if decoded_size(data) > SIZE_LIMIT:
        yield too_long("data", SIZE_LIMIT)
    missing = [key for key in _NEEDED.get(kind or "", ()) if key not in data]
    if kind == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        missing = ["username", "password"]
    if kind == "kubernetes.io/ssh-auth" and not data.get("ssh-privatekey"):
        missing = ["ssh-privatekey"]
    yield from (required(f"data[{key}]") for key in missing)
    if kind in _JSON_TYPES and not missing:
        yield from _validate_json(data[_NEEDED[kind][0]], f"data[{_NEEDED[kind][0]}]")
    if kind == "kubernetes.io/service-account-token":
        annotations = secret["metadata"].get("annotations") or {}
        if not annotations.get(_ACCOUNT_ANNOTATION):
            yield required(f"metadata.annotations[{_ACCOUNT_ANNOTATION}]")


def _validate_json(encoded: str, path: str) -> Iterator[Cause]:
    if why := json_object_error(b64decode(encoded)):
        yield invalid(path, "<secret contents redacted>", why)


_AFTER: Final = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
}
_TYPES: Final = {str: "string", bool: "bool", float: "number", list: "array"}


def json_object_error(text: bytes) -> str:
    """The reason why a text is not a JSON object; empty if it is one.

    The messages are those of Go's encoding/json for the common mistakes, and close to them for others.
    """
    try:
        value = json.loads(text.decode(errors="replace"), parse_int=float)  # which no number is too long for
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()):
            return "unexpected end of JSON input"
        return f"invalid character '{error.doc[error.pos]}' {_AFTER.get(error.msg, 'in JSON input')}"
    except RecursionError:
        return "exceeded max depth"
    if value is None or isinstance(value, dict):
        return ""
    return f"json: cannot unmarshal {_TYPES[type(value)]} into Go value of type map[string]interface {{}}"
