"""The shapes of the built-in kinds, from what a real API server published (see dev/core-types).

The data is read once, and each definition is turned into a shape when it is first asked for: a server that never sees
a StatefulSet never builds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from sandpool.api.resource import ResourceType
from sandpool.api.schema.shape import Definitions, Shape

_DATA: Final = Path(__file__).with_name("core_types.json")
OBJECT_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(_DATA.read_bytes())
    return document


@cache
def _definitions() -> Definitions:
    return Definitions(_document()["definitions"])


def schemas() -> Mapping[str, Mapping[str, Any]]:
    """The definitions themselves, by their full names, references being full names too."""
    schemas: Mapping[str, Mapping[str, Any]] = _document()["definitions"]
    return schemas


def definition_of(type: ResourceType) -> str:
    """The full name of a built-in kind's definition. Raises KeyError for any other kind."""
    name: str = _document()["kinds"][f"{type.api_version}/{type.kind}"]
    return name


def definition(name: str) -> Shape:
    """The shape of a definition, e.g. ``io.k8s.api.core.v1.PodSpec``. Raises KeyError if there is none."""
    return _definitions()[name]


def shape_of(type: ResourceType) -> Shape:
    """The shape of a built-in kind. Raises KeyError for a custom one: its schema is in its CRD."""
    return definition(definition_of(type))
