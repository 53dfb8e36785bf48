"""Builders for claims, pools and the sandboxes they share, as an API would hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from tests.support.sandbox_objects import sandbox, stored

CREATED_AT = "2026-11-01T12:00:00Z"


def warm_pool(name: str = "pool", *, template: str = "python", strategy: str = "", **fields: Any) -> Object:
    spec: Object = {"replicas": 3, "sandboxTemplateRef": {"name": template}}
    if strategy:
        spec["updateStrategy"] = {"type": strategy}
    return stored(SANDBOX_WARM_POOL, name, spec=spec, **fields)


def claim(
    name: str = "claim", *, pool: str = "pool", metadata: Mapping[str, Any] | None = None, **fields: Any
) -> Object:
    """Return a claim. ``spec`` is merged over the reference to its pool."""
    spec = {"warmPoolRef": {"name": pool}, **fields.pop("spec", {})}
    identity = {"generation": 1, "creationTimestamp": CREATED_AT, **(metadata or {})}
    return stored(SANDBOX_CLAIM, name, spec=spec, metadata=identity, **fields)


def pool_member(name: str = "pool-abcde", *, pool: Object, template: str = "python", **fields: Any) -> Object:
    """Return a sandbox that a pool has created."""
    identity = {
        labels.WARM_POOL: name_hash(pool["metadata"]["name"]),
        labels.TEMPLATE_REF_HASH: name_hash(template),
        labels.TEMPLATE_HASH: "1111111111111111",
        labels.POD_TEMPLATE_HASH: "2222222222222222",
        labels.LAUNCH_TYPE: labels.LAUNCH_WARM,
        labels.CREATED_BY: labels.CREATED_BY_CONTROLLER,
    }
    metadata = {
        "creationTimestamp": CREATED_AT,
        "labels": identity,
        "annotations": {labels.TEMPLATE_REF: template, labels.POD_NAME: name},
        **fields.pop("metadata", {}),
    }
    return sandbox(name, owner=pool, metadata=metadata, **fields)


def ready_status(
    *, ips: Sequence[str] = ("10.0.0.1",), node: str = "node-1", since: str = CREATED_AT, **ready: Any
) -> Object:
    """Return the status of a ready sandbox. ``ready`` is merged over that condition."""
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "DependenciesReady",
        "message": "Pod is Ready",
        "lastTransitionTime": since,
        "observedGeneration": 7,
        **ready,
    }
    return {"conditions": [condition], "podIPs": list(ips), "nodeName": node}
