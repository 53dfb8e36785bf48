from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.shape import Shape
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.resources import Resource
from sandpool.server.tables import table

Cells = Callable[[ResourceType, Object], list[Any]]


def _no_shape() -> Shape:
    raise AssertionError("tables read no shape")


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 11, 16, 8, 0, 0, tzinfo=UTC)


@pytest.fixture
def served() -> Callable[..., Resource]:
    """A resource of a type, with any fields of Resource as keywords."""

    def make(type: ResourceType, **fields: Any) -> Resource:
        return Resource(type, _no_shape, KindStrategy(), **fields)

    return make


@pytest.fixture
def cells(served: Callable[..., Resource], now: datetime) -> Cells:
    """The row of a built-in object that is ten minutes old; there is a cell for every column."""

    def make(type: ResourceType, obj: Object) -> list[Any]:
        metadata = {"name": "x", "creationTimestamp": "2026-11-16T07:50:00Z", **obj.get("metadata", {})}
        made = table(served(type), [{**obj, "metadata": metadata}], now=now)
        row: list[Any] = made["rows"][0]["cells"]
        assert len(row) == len(made["columnDefinitions"])
        return row

    return make
