"""Builders for API objects: a test spells out only the fields it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandpool.api.kinds import POD
from sandpool.api.resource import Object, ResourceType

IMAGE = "example.com/image:1"


def new(type: ResourceType, name: str | None, /, **fields: Any) -> Object:
    """An object of a kind; ``metadata`` among the fields is merged with the name, None leaves the name out."""
    metadata = dict(fields.pop("metadata", {}))
    if name is not None:
        metadata["name"] = name
    return {"apiVersion": type.api_version, "kind": type.kind, "metadata": metadata, **fields}


def pod(name: str | None, *, spec: Mapping[str, Any] | None = None, **fields: Any) -> Object:
    """A pod of one container; ``spec`` is laid over that."""
    containers = [{"name": "main", "image": "example.com/image:1"}]
    return new(POD, name, spec={"containers": containers, **(spec or {})}, **fields)


def pod_template(*, spec: Mapping[str, Any] | None = None, **metadata: Any) -> Object:
    """A pod template of one container; ``spec`` is laid over that."""
    template: Object = {"spec": {"containers": [{"name": "main", "image": IMAGE}], **(spec or {})}}
    return {"metadata": metadata, **template} if metadata else template
