"""The scale subresource: current and desired replicas."""

from __future__ import annotations

from typing import Any

from sandpool.api import causes
from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import BadRequest, conflict, invalid
from sandpool.server.apply import track_update
from sandpool.server.apply.managed_fields import with_managed_fields
from sandpool.server.apply.scale import SCALE_VERSION, scale_managed_fields, scaled_managed_fields
from sandpool.server.registry.context import Outcome, RegistryContext
from sandpool.server.registry.decoding import expect_kind, expect_name, fit
from sandpool.server.registry.patch import Patcher
from sandpool.server.registry.read import get
from sandpool.server.registry.update import MODIFIED, store_update
from sandpool.server.request.options import WriteOptions
from sandpool.server.resources import Resource, ScalePaths

_NUMBER = Shape(type="integer")
_SHAPE = Shape(type="object", properties={"spec": Shape(type="object", properties={"replicas": _NUMBER})})


def read_scale(context: RegistryContext, resource: Resource, namespace: str, name: str) -> Object:
    return _scale(resource, context.read(resource, get(context, resource, namespace, name)))


async def update_scale(
    context: RegistryContext,
    resource: Resource,
    scale_resource: Resource,
    namespace: str,
    name: str,
    change: Any | Patcher,
    options: WriteOptions,
) -> Outcome:
    """Set the desired replicas from a Scale object (PUT) or from a patched one."""
    old = context.current(resource, namespace, name)
    current = _scale(resource, old)
    scale = expect_kind(scale_resource, change(current) if callable(change) else change)
    scale, _ = fit(scale_resource, scale, None, options.field_validation, [])
    metadata = scale.get("metadata") or {}
    expect_name(metadata, name)
    if metadata.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
        raise conflict(resource.type, name, MODIFIED)
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if replicas < 0:
        cause = causes.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(scale_resource.type, name, [cause])
    new = _put(old, _steps(_paths(resource).spec), replicas)
    new = _owned(context, resource, new, old, replicas, options)
    outcome = await store_update(context, resource, new, old, options, subresource="scale", applied=True)
    return Outcome(_scale(resource, outcome.object or new), warnings=outcome.warnings)


def _owned(
    context: RegistryContext, resource: Resource, new: Object, old: Object, replicas: int, options: WriteOptions
) -> Object:
    """Record the field manager of the Scale as the owner of the replicas field."""
    path = _paths(resource).spec
    entries = old["metadata"].get("managedFields") or []
    before = with_managed_fields(_scale(resource, old), scale_managed_fields(entries, path))
    after = track_update(
        before,
        {**before, "spec": {"replicas": replicas}},
        shape=_SHAPE,
        manager=options.manager,
        subresource="scale",
        api_version=SCALE_VERSION,
        now=context.now(),
        reset=None,
    )
    owners = after["metadata"].get("managedFields") or []
    return with_managed_fields(new, scaled_managed_fields(entries, owners, path, resource.type.api_version))


def _paths(resource: Resource) -> ScalePaths:
    if resource.scale is None:
        raise BadRequest(f"{resource.type.group_resource} cannot be scaled")
    return resource.scale


def _scale(resource: Resource, obj: Object) -> Object:
    paths = _paths(resource)
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Object = {"replicas": _get(obj, _steps(paths.status)) or 0}
    selector = _get(obj, _steps(paths.selector)) if paths.selector else None
    if isinstance(selector, str) and selector:
        status["selector"] = selector
    elif isinstance(selector, dict):
        status["selector"] = ",".join(f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items()))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": _get(obj, _steps(paths.spec)) or 0},
        "status": status,
    }


def _steps(path: str) -> list[str]:
    return path.lstrip(".").split(".")


def _get(value: Any, steps: list[str]) -> Any:
    for step in steps:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def _put(obj: Object, steps: list[str], value: Any) -> Object:
    if len(steps) == 1:
        return {**obj, steps[0]: value}
    return {**obj, steps[0]: _put(obj.get(steps[0]) or {}, steps[1:], value)}
