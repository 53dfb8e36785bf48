from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.schema.shape import Shape, from_openapi
from sandpool.server.apply.fieldset import decode
from sandpool.server.apply.schema_paths import (
    InvalidListItem,
    has_owned_parts,
    item_element,
    items_by_element,
    reconcile,
    shape_of_field,
)

KEYED = from_openapi(
    {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["port", "protocol"],
        "items": {
            "type": "object",
            "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}},
        },
    }
)
NAMED = Shape("array", list_type="map", list_keys=("name",), items=Shape("object"))


@pytest.mark.parametrize(
    ("value", "element"),
    [
        ({"port": 80, "protocol": "UDP"}, 'k:{"port":80,"protocol":"UDP"}'),
        ({"port": 80}, 'k:{"port":80,"protocol":"TCP"}'),
        ({"port": None}, 'k:{"port":null,"protocol":"TCP"}'),
        ({"port": {"a": 1}}, 'k:{"port":{"a":1},"protocol":"TCP"}'),
        ({}, 'k:{"protocol":"TCP"}'),
    ],
)
def test_item_is_named_by_its_keys(value: Any, element: str) -> None:
    assert item_element(KEYED, value) == element
    assert items_by_element(KEYED, [value]) == {element: value}


def test_item_without_keys_has_no_element() -> None:
    with pytest.raises(InvalidListItem, match=r'omits all key fields \["name"\]'):
        items_by_element(NAMED, [{"name": "a"}, {"value": 1}])
    with pytest.raises(InvalidListItem, match="null element"):
        items_by_element(NAMED, [None])
    with pytest.raises(InvalidListItem, match="non-map"):
        items_by_element(NAMED, ["a"])


def test_values_without_a_schema_are_granular_maps_and_atomic_lists() -> None:
    unknown = shape_of_field(Shape("object", properties={"a": Shape("string")}), "b")
    assert has_owned_parts(unknown, {"x": 1})
    assert not has_owned_parts(unknown, [1])
    assert not has_owned_parts(unknown, {})
    assert not has_owned_parts(unknown, "x")
    assert not has_owned_parts(unknown, None)


def test_container_that_became_atomic_is_owned_as_a_whole(spec: Shape) -> None:
    fields = decode({"f:pair": {"f:left": {}}, "f:steps": {".": {}, 'v:"a"': {}}, "f:limits": {"f:a": {}}})
    assert reconcile(fields, spec).fields == {"f:limits": {"f:a": {}}, "f:pair": {}, "f:steps": {}}


def test_matching_field_set_is_unchanged(spec: Shape) -> None:
    fields = decode(
        {"f:pair": {}, "f:tags": {'v:"a"': {}}, "f:anything": {"f:a": {"f:b": {}}}, "f:unknown": {"f:x": {}}}
    )
    assert reconcile(fields, spec) is fields
