"""The built-in resources: kinds that are served without a CRD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from sandpool.api.kinds import BUILT_IN, CORE_EVENT, DEPLOYMENT, EVENT, REPLICA_SET, STATEFUL_SET
from sandpool.api.resource import ResourceType
from sandpool.api.schema.core import shape_of
from sandpool.server.kinds.events import from_core, to_core
from sandpool.server.kinds.strategies import strategy_for
from sandpool.server.resources import Resource, ScalePaths

# The subresources of Kubernetes that this server implements. Discovery must not list the others.
STREAMED_SUBRESOURCES = frozenset({"exec", "attach", "portforward", "log"})
SERVED_SUBRESOURCES = STREAMED_SUBRESOURCES | {"status", "scale", "binding", "eviction", "finalize", "token"}
_WORKLOAD_SCALE = ScalePaths(".spec.replicas", ".status.replicas", ".spec.selector")
_SCALABLE = frozenset(type.group_resource for type in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET))


def built_in_resources() -> Iterator[Resource]:
    for type in BUILT_IN:
        yield _resource(type)


def _resource(type: ResourceType) -> Resource:
    resource = Resource(
        type=replace(type, subresources=type.subresources & SERVED_SUBRESOURCES),
        shape_source=partial(shape_of, type),
        strategy=strategy_for(type),
        scale=_WORKLOAD_SCALE if type.group_resource in _SCALABLE else None,
    )
    if type == EVENT:
        # Both groups show the same events, stored in the form of the core group.
        resource.storage = CORE_EVENT.group_resource
        resource.to_stored, resource.from_stored = to_core, from_core
    return resource
