from __future__ import annotations

from collections.abc import Callable

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD, SELF_SUBJECT_ACCESS_REVIEW, SERVICE_ACCOUNT
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema import core
from sandpool.api.schema.shape import from_openapi
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.resources import Resource

WIDGET = ResourceType("example.com", "v1", "Widget", "widgets", subresources=frozenset({"status", "scale"}))
SCHEMA: Object = {
    "type": "object",
    "description": "A widget is ours.",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "description": "Wanted state.",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "format": "int32", "default": 1, "minimum": 0},
                "port": {"x-kubernetes-int-or-string": True},
                "maybe": {"type": "string", "nullable": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "mode": {"type": "string", "enum": ["Fast", "Slow"]},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
                },
            },
        },
    },
}


def _built_in(type: ResourceType) -> Resource:
    return Resource(type, lambda: core.shape_of(type), KindStrategy())


@pytest.fixture
def widget() -> Resource:
    return Resource(WIDGET, lambda: from_openapi(SCHEMA), KindStrategy(), custom=True)


@pytest.fixture
def built_in() -> Callable[[ResourceType], Resource]:
    return _built_in


@pytest.fixture
def resources(widget: Resource) -> list[Resource]:
    types = (POD, NAMESPACE, CONFIG_MAP, SERVICE_ACCOUNT, DEPLOYMENT, SELF_SUBJECT_ACCESS_REVIEW)
    return [*map(_built_in, types), widget]
