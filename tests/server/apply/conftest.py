"""A custom kind with every way of owning a value."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.schema.core import OBJECT_META, definition
from sandpool.api.schema.shape import Shape, from_openapi

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
INNER = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}
SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": NUMBER,
        "color": TEXT,
        "tags": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
        "ratios": {"type": "array", "items": {"type": "number"}, "x-kubernetes-list-type": "set"},
        "steps": {"type": "array", "items": TEXT},
        "limits": TEXTS,
        "pair": {"type": "object", "properties": {"left": TEXT, "right": TEXT}, "x-kubernetes-map-type": "atomic"},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "slot"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": TEXT, "slot": {**NUMBER, "default": 1}, "weight": NUMBER, "notes": TEXTS},
            },
        },
        "inner": INNER,
        "groups": {"type": "object", "additionalProperties": INNER},
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
CONDITIONS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {"type": "object", "required": ["type"], "properties": {"type": TEXT, "status": TEXT}},
}
STATUS: dict[str, Any] = {"type": "object", "properties": {"phase": TEXT, "conditions": CONDITIONS}}


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    """The schema as in the CRD of the kind."""
    return {"type": "object", "properties": {"spec": SPEC, "status": STATUS}}


@pytest.fixture(scope="session")
def shape(schema: dict[str, Any]) -> Shape:
    made = from_openapi(schema)
    made.properties |= {"apiVersion": Shape("string"), "kind": Shape("string"), "metadata": definition(OBJECT_META)}
    return made


@pytest.fixture(scope="session")
def spec(shape: Shape) -> Shape:
    return shape.properties["spec"]
