"""A custom kind with every way of owning a value."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.schema.core import OBJECT_META, definition
from sandpool.api.schema.shape import Shape, from_openapi

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": NUMBER,
        "color": TEXT,
        "tags": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
        "steps": {"type": "array", "items": TEXT},
        "limits": {"type": "object", "additionalProperties": TEXT},
        "pair": {"type": "object", "properties": {"left": TEXT, "right": TEXT}, "x-kubernetes-map-type": "atomic"},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "slot"],
            "items": {
                "type": "object",
                "properties": {"name": TEXT, "slot": {**NUMBER, "default": 1}, "weight": NUMBER},
            },
        },
        "inner": {"type": "object", "properties": {"a": TEXT, "b": TEXT}},
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
STATUS: dict[str, Any] = {"type": "object", "properties": {"phase": TEXT}}


@pytest.fixture(scope="session")
def shape() -> Shape:
    made = from_openapi({"type": "object", "properties": {"spec": SPEC, "status": STATUS}})
    made.properties |= {"apiVersion": Shape("string"), "kind": Shape("string"), "metadata": definition(OBJECT_META)}
    return made


@pytest.fixture(scope="session")
def spec(shape: Shape) -> Shape:
    return shape.properties["spec"]
