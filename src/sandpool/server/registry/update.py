"""The update verb, for objects and subresources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sandpool.api import causes
from sandpool.api.causes import Cause
from sandpool.api.resource import Key, Object
from sandpool.kube.errors import BadRequest, conflict, invalid
from sandpool.kube.sharing import same, shared
from sandpool.server.apply import ignore_time_only_change
from sandpool.server.kinds.metadata import keep_system_fields, validate_metadata
from sandpool.server.registry.context import Outcome, RegistryContext, key_of
from sandpool.server.registry.create import create
from sandpool.server.registry.decoding import expect_kind, expect_name, expect_namespace, fit, refuse_invalid
from sandpool.server.registry.offload import Overtaken, rejoin_loop
from sandpool.server.registry.tracking import tracked
from sandpool.server.request.options import WriteOptions
from sandpool.server.resources import Resource

# Writes with content from the client, to which the rules of the kind apply. The other subresources compute the change
# themselves (binding a pod sets its node, which no update may) and are trusted.
_CLIENT_CONTENT = frozenset({"", "status", "scale"})
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


async def update(
    context: RegistryContext,
    resource: Resource,
    namespace: str,
    name: str,
    body: Any,
    options: WriteOptions,
    *,
    subresource: str = "",
    duplicates: tuple[str, ...] = (),
) -> Outcome:
    """Replace an object with a request body (PUT)."""
    obj = expect_kind(resource, body)
    metadata = obj.get("metadata") or {}
    if not metadata.get("name"):
        raise BadRequest("name must be provided")
    expect_name(metadata, name)
    expect_namespace(resource, metadata, namespace)
    if resource.strategy.allow_create_on_update and context.store.head(resource.storage, Key(namespace, name)) is None:
        if options.create_refusal is not None:
            raise options.create_refusal
        return await create(context, resource, namespace, body, options, name=name, duplicates=duplicates)
    old = context.current(resource, namespace, name)
    metadata = {**metadata}
    if resource.type.namespaced:
        metadata["namespace"] = namespace
    elif "namespace" in metadata:
        del metadata["namespace"]
    # A PUT repeats everything. Sharing unchanged parts with the old object lets later steps skip them.
    new: Object = shared(old, {**obj, "metadata": metadata})
    _check_uid(resource, new, old)
    return await store_update(context, resource, new, old, options, subresource=subresource, duplicates=duplicates)


async def store_update(
    context: RegistryContext,
    resource: Resource,
    new: Object,
    old: Object,
    options: WriteOptions,
    *,
    subresource: str = "",
    duplicates: tuple[str, ...] = (),
    applied: bool = False,
) -> Outcome:
    """Update from ``old``, the newest accepted state, to ``new``.

    Nothing else runs between reading ``old`` and passing the result to the store, so the only possible conflict is the
    one that a client requests with a resourceVersion. ``applied``: server-side apply has already set field
    ownership.
    """
    outcome = Outcome(None)
    _check_version(resource, new, old)
    new = _restrict(resource, new, old, subresource, options.with_metadata)
    new, wrong = fit(resource, new, old, options.field_validation, outcome.warnings, duplicates)
    if subresource in _CLIENT_CONTENT:
        new = resource.strategy.default(new, old)
    sent = None if applied else new["metadata"]
    if not applied:
        new = tracked(context, resource, old, new, options, subresource)
    new = _prepare(context, resource, new, old, subresource)
    if options.guard is not None:
        options.guard(new, old)
    if not wrong:
        wrong = _validate(resource, new, old, subresource, sent)
    refuse_invalid(resource, new, wrong)
    if not subresource:
        outcome.warnings.extend(resource.strategy.warnings(new, old))
    new = _generation(resource, new, old)
    new = ignore_time_only_change(old, new)
    unchanged = same(new, old)
    if context.offloaded:
        await rejoin_loop()
        if not context.is_current(resource, old):
            raise Overtaken
    if unchanged:
        if not options.dry_run:
            await context.settle(resource, key_of(old))
        outcome.object = old
        return outcome
    if options.dry_run:
        outcome.object = new
        return outcome
    saved = await (context.remove if _is_finished(resource, new) else context.put)(resource, new)
    outcome.object, outcome.encoded = saved.object, saved.encoded
    return outcome


def _check_uid(resource: Resource, new: Object, old: Object) -> None:
    uid, before = new["metadata"].get("uid"), old["metadata"]
    if uid and uid != before["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
        raise conflict(resource.type, before["name"], why)


def _check_version(resource: Resource, new: Object, old: Object) -> None:
    metadata, before = new["metadata"], old["metadata"]
    version = metadata.get("resourceVersion")
    if version:
        if version != before["resourceVersion"]:
            raise conflict(resource.type, before["name"], MODIFIED)
    elif not resource.strategy.allow_unconditional_update:
        cause = causes.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        # kube-apiserver names the resource here, not the kind.
        raise invalid(replace(resource.type, kind=resource.type.plural), before["name"], [cause])


def _restrict(resource: Resource, new: Object, old: Object, subresource: str, with_metadata: bool = False) -> Object:
    """Restore the fields that this kind of write cannot change. They are not validated."""
    if subresource == "status":
        if not resource.custom:
            return _take(new, old, "spec")
        # Only the status of a custom resource and its managedFields can be written here.
        if with_metadata:
            metadata = old["metadata"]
            for field in ("labels", "annotations", "managedFields"):
                metadata = _take(metadata, new["metadata"], field)
            return {**_take(old, new, "status"), "metadata": metadata}
        managed = new["metadata"].get("managedFields")
        restricted = _take(old, new, "status")
        if managed is None or managed is old["metadata"].get("managedFields"):
            return restricted
        return {**restricted, "metadata": {**old["metadata"], "managedFields": managed}}
    if subresource in _CLIENT_CONTENT and resource.has_status:
        return _take(new, old, "status")
    return new


def _prepare(context: RegistryContext, resource: Resource, new: Object, old: Object, subresource: str) -> Object:
    """Run admission, and restore the fields that no update may change."""
    strategy = resource.strategy
    if subresource == "status":
        new = strategy.prepare_status_update(new, old)
    elif subresource in _CLIENT_CONTENT:
        new = strategy.admit(new, old, context.neighbours)
        new = strategy.prepare_update(new, old)
    metadata = keep_system_fields(new["metadata"], old["metadata"])
    if not metadata.get("resourceVersion"):
        metadata = {**metadata, "resourceVersion": old["metadata"]["resourceVersion"]}
    if same(metadata, old["metadata"]):
        metadata = old["metadata"]
    return new if metadata is new["metadata"] else {**new, "metadata": metadata}


def _take(obj: Object, source: Object, field: str) -> Object:
    """Copy one field of ``source`` into the object."""
    if field in source:
        return obj if field in obj and obj[field] is source[field] else {**obj, field: source[field]}
    return {key: value for key, value in obj.items() if key != field} if field in obj else obj


def _validate(resource: Resource, new: Object, old: Object, subresource: str, sent: Object | None) -> list[Cause]:
    strategy = resource.strategy
    found = validate_metadata(
        new,
        old,
        namespaced=resource.type.namespaced,
        name_format=strategy.name_format,
        custom=resource.custom,
        sent=sent,
    )
    if subresource == "status":
        found += strategy.validate_status(new, old)
    elif subresource in _CLIENT_CONTENT:
        found += strategy.validate(new, old)
    return found


def _generation(resource: Resource, new: Object, old: Object) -> Object:
    if resource.custom:
        moved = _differs(new, old, has_status=resource.has_status) or _differs(old, new, has_status=resource.has_status)
    else:
        moved = resource.strategy.spec_generation and resource.strategy.bumps_generation(new, old)
    if not moved:
        return new
    generation = old["metadata"].get("generation", 0) + 1
    return {**new, "metadata": {**new["metadata"], "generation": generation}}


def _differs(obj: Object, other: Object, *, has_status: bool) -> bool:
    """Whether a field that counts for the generation differs."""
    for (key, value), before in zip(obj.items(), map(other.get, obj), strict=True):
        if value is before or key == "metadata" or (has_status and key == "status"):
            continue
        if not same(value, before):
            return True
    return False


def _is_finished(resource: Resource, new: Object) -> bool:
    """Whether this update removed the last finalizer of a deleted object."""
    metadata = new["metadata"]
    return bool(
        metadata.get("deletionTimestamp")
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and not resource.strategy.blocks_removal(new)
    )
