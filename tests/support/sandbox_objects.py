"""Builders for sandboxes, templates and their children as the API stores them, with UIDs and namespaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandpool.api.kinds import NETWORK_POLICY, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_TEMPLATE, SERVICE
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object, ResourceType
from sandpool.testing.objects import new, pod_template
from tests.support.api_objects import owner_reference

NAMESPACE = "default"


def stored(type: ResourceType, name: str, *, owner: Object | None = None, **fields: Any) -> Object:
    """Return an object with UID and namespace; ``owner`` is its controller."""
    metadata: Object = {"namespace": NAMESPACE, "uid": f"{type.singular}-{name}", "resourceVersion": "1"}
    if owner is not None:
        metadata["ownerReferences"] = [owner_reference(owner, controller=True, block=True)]
    metadata.update(fields.pop("metadata", {}))
    return new(type, name, metadata=metadata, **fields)


def sandbox(name: str = "box", *, spec: Mapping[str, Any] | None = None, **fields: Any) -> Object:
    return stored(SANDBOX, name, spec={"podTemplate": pod_template(), **(spec or {})}, **_generated(fields))


def template(name: str = "python", *, spec: Mapping[str, Any] | None = None, **fields: Any) -> Object:
    return stored(SANDBOX_TEMPLATE, name, spec={"podTemplate": pod_template(), **(spec or {})}, **_generated(fields))


def sandbox_pod(owner: Object, name: str | None = None, **fields: Any) -> Object:
    """Return a pod of a sandbox without a status."""
    return _child(POD, owner, name, fields)


def sandbox_service(owner: Object, **fields: Any) -> Object:
    """Return the Service of a sandbox whose pod has no ports."""
    spec = {"clusterIP": "None", "selector": _tracking(owner), **fields.pop("spec", {})}
    return _child(SERVICE, owner, None, {**fields, "spec": spec})


def sandbox_volume_claim(owner: Object, template: str, **fields: Any) -> Object:
    return _child(PERSISTENT_VOLUME_CLAIM, owner, f"{template}-{owner['metadata']['name']}", fields)


def template_policy(owner: Object, spec: Object) -> Object:
    return stored(NETWORK_POLICY, f"{owner['metadata']['name']}-network-policy", owner=owner, spec=spec)


def pod_status(
    phase: str,
    *,
    ready: bool = False,
    ips: Sequence[str] = (),
    scheduled: str | None = "True",
    reason: str = "",
    message: str = "",
) -> Object:
    """Return the status that kubelet and scheduler report; ``scheduled`` None leaves that condition out."""
    conditions: list[Object] = [{"type": "Ready", "status": "True" if ready else "False"}]
    if scheduled is not None:
        conditions.append({"type": "PodScheduled", "status": scheduled, "reason": reason, "message": message})
    return {"phase": phase, "podIPs": [{"ip": ip} for ip in ips], "conditions": conditions}


def _generated(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "metadata": {"generation": 1, **fields.get("metadata", {})}}


def _tracking(owner: Object) -> dict[str, str]:
    return {SANDBOX_NAME_HASH: name_hash(owner["metadata"]["name"])}


def _child(type: ResourceType, owner: Object, name: str | None, fields: dict[str, Any]) -> Object:
    metadata = {"labels": _tracking(owner), **fields.pop("metadata", {})}
    return stored(type, name or owner["metadata"]["name"], owner=owner, metadata=metadata, **fields)
