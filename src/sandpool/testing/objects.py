"""Builders for API objects: a test spells out only the fields it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, POD
from sandpool.api.resource import Object, ResourceType, SharedObject

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


def owner_reference(owner: SharedObject, *, controller: bool = False, block: bool = False) -> Object:
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


def pod_template(*, spec: Mapping[str, Any] | None = None, **metadata: Any) -> Object:
    """A pod template of one container; ``spec`` is laid over that."""
    template: Object = {"spec": {"containers": [{"name": "main", "image": IMAGE}], **(spec or {})}}
    return {"metadata": metadata, **template} if metadata else template
