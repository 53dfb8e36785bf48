"""Builders for API objects that only tests of this project need, beside those of ``sandpool.testing.objects``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.testing.objects import new


def owner_reference(owner: SharedObject, *, controller: bool = False, block: bool = False) -> Object:
    """An owner reference to an object; ``block`` for one that blocks the deletion of its owner."""
    reference: Object = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    if controller:
        reference["controller"] = True
    if block:
        reference["blockOwnerDeletion"] = True
    return reference


def custom_type(group: str, kind: str = "Widget", *, namespaced: bool = True, version: str = "v1") -> ResourceType:
    """A type that no program but the test knows."""
    return ResourceType(group, version, kind, kind.lower() + "s", namespaced)


def definition(
    type: ResourceType, schema: Object | None = None, *, subresources: Iterable[str] = (), **version: Any
) -> Object:
    """A CustomResourceDefinition of one version. Without a schema its ``spec`` takes anything; ``scale`` among the
    subresources gets the usual paths; what else is given becomes part of the version."""
    paths = {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = schema or {"type": "object", "properties": {"spec": anything, "status": anything}}
    served: Object = {"name": type.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if subresources:
        served["subresources"] = {name: paths[name] for name in subresources}
    served.update(version)
    names: Object = {"kind": type.kind, "listKind": type.list_kind, "plural": type.plural, "singular": type.singular}
    if type.short_names:
        names["shortNames"] = list(type.short_names)
    if type.categories:
        names["categories"] = list(type.categories)
    return new(
        CUSTOM_RESOURCE_DEFINITION,
        type.group_resource,
        spec={
            "group": type.group,
            "names": names,
            "scope": "Namespaced" if type.namespaced else "Cluster",
            "versions": [served],
        },
    )
