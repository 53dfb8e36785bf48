"""Validation that a schema in a CustomResourceDefinition is structural, so that objects can be pruned and defaulted.

A *structural* schema specifies the type, properties and items of every value outside of the logical junctors;
``allOf``, ``anyOf``, ``oneOf`` and ``not`` may only restrict values further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported, required
from sandpool.api.schema.admit import compile_admission
from sandpool.api.schema.patterns import UnsupportedPattern, compile_pattern
from sandpool.api.schema.shape import from_openapi

Schema = Mapping[str, Any]

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_NOT_SUPPORTED: Final = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
_INT_OR_STRING: Final = [{"type": "integer"}, {"type": "string"}]
_META: Final = frozenset({"metadata", "kind", "apiVersion"})
_NO_TYPE: Final = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
# Keywords that specify structure, each with the message for its use inside a junctor.
_STRUCTURE: Final = {
    "type": "must be empty to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    "default": "must be undefined to be structural",
    "additionalProperties": "must be undefined to be structural",
    "x-kubernetes-preserve-unknown-fields": "must be false to be structural",
    "x-kubernetes-embedded-resource": "must be false to be structural",
    "x-kubernetes-int-or-string": "must be false to be structural",
    "x-kubernetes-list-map-keys": "must be empty to be structural",
    "x-kubernetes-list-type": "must be undefined to be structural",
    "x-kubernetes-map-type": "must be undefined to be structural",
    "x-kubernetes-validations": "must be empty to be structural",
}


def validate_schema(schema: Schema, path: str) -> Iterator[Cause]:
    """Validate the schema of one version: first each node on its own, then, if all are valid, the structure."""
    wrong = list(_validate_keywords(schema, path, root=True))
    if wrong:
        yield from wrong
        return
    yield from _validate_structure(schema, path, "root")
    yield from _validate_completeness(schema, schema, path, path)


# Keywords -----------------------------------------------------------------------------------------------------------


def _validate_keywords(schema: Schema, path: str, *, root: bool = False, defaults: str = "") -> Iterator[Cause]:
    """Validate each node on its own. ``defaults`` is the reason why defaults are forbidden; empty if they are not."""
    kind = schema.get("type") or ""
    if kind == "null":
        yield forbidden(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    if kind and kind not in _TYPES:
        yield not_supported(f"{path}.type", kind, _TYPES)
    if defaults and "default" in schema:
        yield forbidden(f"{path}.default", f"must not be set {defaults}")
    elif "default" in schema and kind in _TYPES:
        yield from _validate_default(schema, path)
    for keyword in _NOT_SUPPORTED:
        if schema.get(keyword):
            yield forbidden(f"{path}.{keyword}", f"{keyword} is not supported")
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{path}.uniqueItems", why)
    if schema.get("properties") and schema.get("additionalProperties") not in (None, True):
        yield forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        yield invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    yield from _validate_map_type(schema, kind, path)
    yield from _validate_list_type(schema, kind, path)
    for name, inner in (schema.get("properties") or {}).items():
        reason = f"in top-level {name}" if root and name in _META else defaults
        yield from _validate_keywords(inner, f"{path}.properties[{name}]", defaults=reason)
    for keyword in ("additionalProperties", "items", "not"):
        if isinstance(schema.get(keyword), dict):
            yield from _validate_keywords(schema[keyword], f"{path}.{keyword}", defaults=defaults)
    if isinstance(schema.get("items"), list):
        yield forbidden(f"{path}.items", "items must be a schema object and not an array")
    for keyword in ("allOf", "anyOf", "oneOf"):
        for index, inner in enumerate(schema.get(keyword) or ()):
            yield from _validate_keywords(inner, f"{path}.{keyword}[{index}]", defaults=defaults)


def _validate_default(schema: Schema, path: str) -> Iterator[Cause]:
    """Validate a default against its own schema. kube-apiserver's messages name no path here."""
    rules = "x-kubernetes-validations"
    plain = {key: value for key, value in schema.items() if key not in (rules, "default")}
    admit = compile_admission(from_openapi({"type": "object", "properties": {"": plain}}))
    for cause in admit({"": schema["default"]}).causes:
        yield Cause(f"{path}.default{cause.field}", cause.reason, cause.message)


def _validate_map_type(schema: Schema, kind: str, path: str) -> Iterator[Cause]:
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is None:
        return
    if kind != "object":
        why = "must be object if x-kubernetes-map-type is specified"
        yield invalid(f"{path}.type", kind, why) if kind else required(f"{path}.type", why)
    if map_type not in ("atomic", "granular"):
        yield not_supported(f"{path}.x-kubernetes-map-type", map_type, ("atomic", "granular"))


def _validate_list_type(schema: Schema, kind: str, path: str) -> Iterator[Cause]:
    list_type, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []
    if keys and list_type != "map":
        why, at = "must be map if x-kubernetes-list-map-keys is non-empty", f"{path}.x-kubernetes-list-type"
        yield required(at, why) if list_type is None else invalid(at, list_type, why)
    if list_type is None:
        return
    if kind != "array":
        why = "must be array if x-kubernetes-list-type is specified"
        yield invalid(f"{path}.type", kind, why) if kind else required(f"{path}.type", why)
    if list_type not in ("atomic", "set", "map"):
        yield not_supported(f"{path}.x-kubernetes-list-type", list_type, ("atomic", "set", "map"))
    items = schema.get("items")
    if isinstance(items, dict) and list_type in ("set", "map") and items.get("nullable"):
        why = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        yield forbidden(f"{path}.items.nullable", why)
    if list_type == "set" and isinstance(items, dict):
        yield from _validate_set_items(items, path)
    if list_type == "map":
        yield from _validate_map_items(items, keys, path)


def _validate_set_items(items: Schema, path: str) -> Iterator[Cause]:
    why = "must be atomic as item of a list with x-kubernetes-list-type=set"
    if items.get("type") == "array" and items.get("x-kubernetes-list-type", "atomic") != "atomic":
        yield invalid(f"{path}.items.x-kubernetes-list-type", items["x-kubernetes-list-type"], why)
    if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        yield invalid(f"{path}.items.x-kubernetes-map-type", items.get("x-kubernetes-list-type"), why)


def _validate_map_items(items: Any, keys: list[str], path: str) -> Iterator[Cause]:
    keys_path = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        yield required(keys_path, "must not be empty if x-kubernetes-list-type is map")
    if items is None:
        yield required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map")
    if not isinstance(items, dict):
        return
    if items.get("type") != "object":
        why = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid(f"{path}.items.type", items.get("type") or "", why)
        return
    properties = items.get("properties") or {}
    for key in keys:
        at, inner = f"{path}.items.properties[{key}]", properties.get(key)
        if inner is None:
            yield invalid(keys_path, keys, "entries must all be names of item properties")
            continue
        if inner.get("type") in ("array", "object"):
            why = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield invalid(f"{at}.type", items["type"], why)
        listed = "this property is in x-kubernetes-list-map-keys, so it"
        if key not in (items.get("required") or ()) and "default" not in inner:
            yield required(f"{at}.default", f"{listed} must have a default or be a required property")
        if inner.get("nullable"):
            yield forbidden(f"{at}.nullable", f"{listed} cannot be nullable")
    if len(set(keys)) != len(keys):
        yield invalid(keys_path, keys, "must not contain duplicate entries")


# Structure ----------------------------------------------------------------------------------------------------------


def _validate_structure(schema: Schema, path: str, level: str) -> Iterator[Cause]:
    kind, items = schema.get("type") or "", schema.get("items")
    if kind == "array" and not items:
        yield required(f"{path}.items", "must be specified")
    if isinstance(items, dict):
        yield from _validate_structure(items, f"{path}.items", "item")
    for name, inner in (schema.get("properties") or {}).items():
        yield from _validate_structure(inner, f"{path}.properties[{name}]", "field")
    additional = schema.get("additionalProperties")
    if additional is not None and level == "root":
        yield forbidden(f"{path}.additionalProperties", "must not be used at the root")
    if isinstance(additional, dict):
        yield from _validate_structure(additional, f"{path}.additionalProperties", "field")
    yield from _validate_flags(schema, kind, path, level)
    yield from _validate_meta(schema, path, level)
    yield from _validate_junctors(schema, path)


def _validate_flags(schema: Schema, kind: str, path: str, level: str) -> Iterator[Cause]:
    preserves = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
    if int_or_string:
        why = "must be false if x-kubernetes-int-or-string is true"
        if preserves:
            yield invalid(f"{path}.x-kubernetes-preserve-unknown-fields", True, why)
        if embedded:
            yield invalid(f"{path}.x-kubernetes-embedded-resource", True, why)
    if embedded and kind != "object":
        why = "must be object if x-kubernetes-embedded-resource is true"
        yield invalid(f"{path}.type", kind, why) if kind else required(f"{path}.type", why)
    elif not kind and not int_or_string and not preserves:
        yield required(f"{path}.type", _NO_TYPE[level])
    if embedded and schema.get("additionalProperties") is not None:
        yield forbidden(f"{path}.additionalProperties", "must not be used if x-kubernetes-embedded-resource is set")
    if level == "root" and kind not in ("", "object"):
        yield invalid(f"{path}.type", kind, "must be object at the root")
    if embedded and not preserves and not schema.get("properties"):
        why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        yield required(f"{path}.properties", why)


def _validate_meta(schema: Schema, path: str, level: str) -> Iterator[Cause]:
    """Validate that a schema does not restrict apiVersion, kind and metadata beyond name and generateName."""
    properties = schema.get("properties") or {}
    if level == "root" or schema.get("x-kubernetes-embedded-resource"):
        for name, kind in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
            if name in properties and properties[name].get("type") != kind:
                yield invalid(f"{path}.properties[{name}].type", properties[name].get("type") or "", f"must be {kind}")
    if level == "root" and "metadata" in properties:
        rules = {
            key: value for key, value in properties["metadata"].items() if key not in ("type", "default") and value
        }
        restricted = (rules.pop("properties", None) or {}).keys()
        if rules or not restricted <= {"name", "generateName"}:
            why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            yield forbidden(f"{path}.properties[metadata]", why)


def _validate_junctors(schema: Schema, path: str, *, skip_any_of: bool = False) -> Iterator[Cause]:
    int_or_string = schema.get("anyOf") == _INT_OR_STRING
    for keyword in ("anyOf", "allOf", "oneOf"):
        if keyword == "anyOf" and (int_or_string or skip_any_of):
            continue
        for index, inner in enumerate(schema.get(keyword) or ()):
            # The other form of int-or-string: as the first of several restrictions.
            first = keyword == "allOf" and index == 0 and inner.get("anyOf") == _INT_OR_STRING
            yield from _validate_nested(inner, f"{path}.{keyword}[{index}]", skip_any_of=first)
    if isinstance(schema.get("not"), dict):
        yield from _validate_nested(schema["not"], f"{path}.not")
    if pattern := schema.get("pattern"):
        try:
            compile_pattern(pattern)
        except UnsupportedPattern as error:
            why = f"must be a valid regular expression, but isn't: {error}"
            yield invalid(f"{path}.pattern", pattern, why)


def _validate_nested(schema: Schema, path: str, *, skip_any_of: bool = False) -> Iterator[Cause]:
    """Validate a schema inside a junctor: it may restrict, but not specify structure."""
    yield from _validate_junctors(schema, path, skip_any_of=skip_any_of)
    for keyword, why in _STRUCTURE.items():
        if schema.get(keyword) not in (None, "", False, []):
            yield forbidden(f"{path}.{keyword}", why)
    if isinstance(schema.get("items"), dict):
        yield from _validate_nested(schema["items"], f"{path}.items")
    for name, inner in (schema.get("properties") or {}).items():
        yield from _validate_nested(inner, f"{path}.properties[{name}]")
    if "metadata" in (schema.get("properties") or {}):
        yield forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context")


def _validate_completeness(nested: Schema, schema: Schema | None, path: str, nested_path: str) -> Iterator[Cause]:
    """Validate that each field named inside a junctor is also specified outside of it."""
    for keyword in ("allOf", "anyOf", "oneOf"):
        for index, inner in enumerate(nested.get(keyword) or ()):
            yield from _validate_counterpart(inner, schema, path, f"{nested_path}.{keyword}[{index}]")
    if isinstance(nested.get("not"), dict):
        yield from _validate_counterpart(nested["not"], schema, path, f"{nested_path}.not")


def _validate_counterpart(nested: Schema, schema: Schema | None, path: str, nested_path: str) -> Iterator[Cause]:
    if schema is None:
        yield required(path, f"because it is defined in {nested_path}")
        return
    yield from _validate_completeness(nested, schema, path, nested_path)
    if isinstance(nested.get("items"), dict):
        yield from _validate_counterpart(nested["items"], schema.get("items"), f"{path}.items", f"{nested_path}.items")
    for name, inner in (nested.get("properties") or {}).items():
        outer = (schema.get("properties") or {}).get(name)
        step = f".properties[{name}]"
        yield from _validate_counterpart(inner, outer, path + step, nested_path + step)
