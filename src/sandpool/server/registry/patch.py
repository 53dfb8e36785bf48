"""The patch verb: JSON patch, merge patch, strategic merge patch and server-side apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import orjson

from sandpool.api import causes
from sandpool.api.resource import Key, Object, ResourceType
from sandpool.kube.errors import BadRequest, UnsupportedMediaType, conflict, invalid, not_found
from sandpool.kube.jsonpatch import json_patch
from sandpool.kube.patches import merge_patch_object
from sandpool.kube.strategic import strategic_merge_patch
from sandpool.kube.transport import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH
from sandpool.server.apply import apply, check_applied_kind, reset_fields
from sandpool.server.registry.context import Outcome, RegistryContext
from sandpool.server.registry.create import create
from sandpool.server.registry.decoding import Unreadable, check_duplicates, expect_kind, expect_name, expect_namespace
from sandpool.server.registry.update import MODIFIED, store_update
from sandpool.server.request.options import WriteOptions
from sandpool.server.resources import Resource

Patcher = Callable[[Object], Object]
_UNNAMED = ResourceType("", "v1", "", "")  # kube-apiserver names no kind in the error for an undecodable patch


_CUSTOM: Final = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)
_BUILT_IN: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH)


def media_types(resource: Resource) -> tuple[str, ...]:
    return _CUSTOM if resource.custom else _BUILT_IN


def check_media_type(resource: Resource, media_type: str) -> None:
    supported = media_types(resource)
    if media_type not in supported:
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
        )


def patcher(resource: Resource, media_type: str, body: Any) -> Patcher:
    """Return a function that applies the patch to an object."""
    if media_type == JSON_PATCH:
        return lambda obj: json_patch(obj, body)
    if media_type == MERGE_PATCH:
        return lambda obj: merge_patch_object(obj, body)
    return lambda obj: strategic_merge_patch(obj, body, resource.shape)


async def patch(
    context: RegistryContext,
    resource: Resource,
    namespace: str,
    name: str,
    media_type: str,
    body: Any,
    options: WriteOptions,
    *,
    subresource: str = "",
    duplicates: tuple[str, ...] = (),
) -> Outcome:
    check_media_type(resource, media_type)
    if media_type == APPLY_PATCH:
        return await _apply(context, resource, namespace, name, body, options, subresource, duplicates)
    old = context.current(resource, namespace, name)
    new = patcher(resource, media_type, body)(old)
    warnings: list[str] = []
    try:
        check_duplicates(resource, duplicates, options.field_validation, warnings)
        _check_result(resource, new, old)
        outcome = await store_update(context, resource, new, old, options, subresource=subresource)
    except Unreadable as error:
        cause = causes.invalid("patch", orjson.dumps(body).decode(), error.why)
        raise invalid(_UNNAMED, "", [cause]) from None
    outcome.warnings[:0] = warnings
    return outcome


def _check_result(resource: Resource, new: Any, old: Object) -> None:
    """Check that the patch does not change kind, name or namespace."""
    expect_kind(resource, new)
    metadata, before = new.get("metadata"), old["metadata"]
    if metadata is before:
        return
    if not isinstance(metadata, dict):
        metadata = {}
    # A removed field counts as changed, too.
    expect_name({"name": "", **metadata}, before["name"])
    expect_namespace(resource, {"namespace": "<none>", **metadata}, before.get("namespace", ""))


async def _apply(
    context: RegistryContext,
    resource: Resource,
    namespace: str,
    name: str,
    body: Any,
    options: WriteOptions,
    subresource: str,
    duplicates: tuple[str, ...],
) -> Outcome:
    if not isinstance(body, dict) or not isinstance(body.get("metadata") or {}, dict):
        raise BadRequest("the patch is not an object with metadata")
    check_applied_kind(body, resource.type)
    metadata = body.get("metadata") or {}
    expect_name(metadata, name)
    expect_namespace(resource, metadata, namespace)
    entry = context.store.head(resource.storage, Key(namespace if resource.type.namespaced else "", name))
    old = context.read(resource, entry) if entry is not None else None
    if old is None and subresource:
        raise not_found(resource.type, name)
    if old is None and metadata.get("uid"):
        why = f"the provided object specified uid {metadata['uid']}, and no existing object was found"
        raise conflict(resource.type, name, f"uid mismatch: {why}")
    if old is not None and metadata.get("resourceVersion", version := old["metadata"]["resourceVersion"]) != version:
        raise conflict(resource.type, name, MODIFIED)
    warnings: list[str] = []
    check_duplicates(resource, duplicates, options.field_validation, warnings)
    merged = apply(
        old,
        body,
        shape=resource.typed,
        manager=options.manager,
        force=bool(options.force),
        subresource=subresource,
        now=context.now(),
        reset=reset_fields(resource.type, subresource, custom=resource.custom),
    )
    quiet = replace(options, field_validation="Ignore")
    if old is None:
        if options.create_refusal is not None:
            raise options.create_refusal
        outcome = await create(context, resource, namespace, merged, quiet, name=name, applied=True)
    else:
        outcome = await store_update(context, resource, merged, old, quiet, subresource=subresource, applied=True)
    outcome.warnings[:0] = warnings
    return outcome
