from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.schema.shape import MISSING, Definitions, Rule, Shape, from_openapi, to_openapi

POOL: dict[str, Any] = {
    "type": "object",
    "description": "a pool",
    "required": ["name", "ports"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z]+$", "default": ""},
        "replicas": {"type": "integer", "format": "int32", "minimum": 0, "default": 0},
        "surge": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "port",
            "items": {"type": "object", "properties": {"port": {"type": "integer"}, "protocol": {"type": "string"}}},
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "atomic"},
        "mode": {"type": "string", "enum": ["A", "B"], "nullable": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "either": {"type": "string", "oneOf": [{"minLength": 3}, {"maxLength": 1}], "not": {"enum": ["x"]}},
    },
    "x-kubernetes-validations": [
        {"rule": "self.name == oldSelf.name", "message": "name is immutable", "optionalOldSelf": True}
    ],
}


def test_keywords_become_attributes() -> None:
    shape = from_openapi(POOL)
    assert shape.type == "object"
    assert shape.required == {"name", "ports"}
    ports = shape.properties["ports"]
    assert (ports.list_type, ports.list_keys) == ("map", ("port", "protocol"))
    assert (ports.patch_strategy, ports.patch_merge_key) == ("merge", "port")
    assert ports.items is not None
    assert ports.items.properties["port"].type == "integer"
    labels = shape.properties["labels"]
    assert labels.map_type == "atomic"
    assert labels.additional is not None
    assert labels.additional.type == "string"
    assert shape.properties["surge"].int_or_string
    assert [each.type for each in shape.properties["surge"].any_of] == ["integer", "string"]
    assert shape.properties["mode"].enum == ("A", "B")
    assert shape.properties["mode"].default is MISSING
    assert shape.rules == (Rule("self.name == oldSelf.name", message="name is immutable", optional_old_self=True),)


def test_schema_is_unchanged_by_a_round_trip() -> None:
    assert to_openapi(from_openapi(POOL)) == POOL


def test_empty_shape_accepts_any_value() -> None:
    assert to_openapi(Shape()) == {}


def test_additional_properties_without_a_schema_accept_any_value() -> None:
    anything = from_openapi({"type": "object", "additionalProperties": True}).additional
    assert anything is not None
    assert not anything.preserve_unknown
    assert from_openapi({"type": "object", "additionalProperties": False}).additional is None


def test_null_zero_and_false_are_valid_defaults() -> None:
    defaults: list[Any] = [None, 0, False, "", {}, []]
    for default in defaults:
        shape = from_openapi({"default": default})
        assert shape.default == default
        assert to_openapi(shape) == {"default": default}


def test_references_are_shared_and_may_be_cyclic() -> None:
    schemas: dict[str, dict[str, Any]] = {
        "Node": {
            "type": "object",
            "properties": {"next": {"$ref": "#/components/schemas/Node"}, "leaf": {"$ref": "Leaf"}},
        },
        "Leaf": {"type": "string", "format": "date-time"},
    }
    definitions = Definitions(schemas)
    node = definitions["Node"]
    assert node.properties["next"] is node
    assert node.properties["leaf"] is definitions["Leaf"]
    assert node.name == "Node"
    with pytest.raises(ValueError, match="contains itself"):
        to_openapi(node)


def test_reference_with_siblings_overrides_its_target() -> None:
    schemas: dict[str, dict[str, Any]] = {
        "Node": {
            "type": "object",
            "properties": {"next": {"$ref": "Node", "default": {}, "x-kubernetes-map-type": "atomic"}, "n": {}},
        },
    }
    node = Definitions(schemas)["Node"]
    following = node.properties["next"]
    assert following is not node
    assert following.default == {}
    assert node.default is MISSING
    assert following.map_type == "atomic"
    assert following.properties is node.properties


def test_unknown_reference_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        from_openapi({"$ref": "#/components/schemas/Nowhere"})
