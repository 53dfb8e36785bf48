"""Replacing an object, or the part of it that a subresource stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sandpool.api import causes
from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.kube.errors import BadRequest, conflict, invalid
from sandpool.kube.sharing import same, shared
from sandpool.server.apply import ignore_time_only_change
from sandpool.server.kinds.metadata import keep_system_fields, validate_metadata
from sandpool.server.registry.context import Outcome, RegistryContext, key_of
from sandpool.server.registry.create import create
from sandpool.server.registry.decoding import expect_kind, expect_name, expect_namespace, fit, refuse_invalid
from sandpool.server.registry.tracking import tracked
from sandpool.server.request.options import WriteOptions
from sandpool.server.resources import Resource

# Writes that a client words itself, and whose content therefore follows the rules of the kind. The other subresources
# word the change themselves (binding a pod sets its node, which no update may) and are trusted with it.
_WORDED_BY_CLIENTS = frozenset({"", "status", "scale"})
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
    """Replace an object by a request body (PUT)."""
    obj = expect_kind(resource, body)
    metadata = obj.get("metadata") or {}
    if not metadata.get("name"):
        raise BadRequest("name must be provided")
    expect_name(metadata, name)
    expect_namespace(resource, metadata, namespace)
    if resource.strategy.allow_create_on_update and context.store.head(resource.storage, (namespace, name)) is None:
        return await create(context, resource, namespace, body, options, name=name, duplicates=duplicates)
    old = context.current(resource, namespace, name)
    metadata = {**metadata}
    if resource.type.namespaced:
        metadata["namespace"] = namespace
    elif "namespace" in metadata:
        del metadata["namespace"]
    # A PUT repeats everything. Sharing what it did not change lets every later step skip it.
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
    """Carry out an update from ``old``, the newest accepted state, to ``new``, however that was made.

    From reading ``old`` to handing the result to the store nothing else runs, so there is no conflict to detect other
    than the one the client asks for by sending a resourceVersion. ``applied``: field ownership was settled by
    server-side apply already.
    """
    outcome = Outcome(None)
    _check_version(resource, new, old)
    new = _restrict(resource, new, old, subresource, options.with_metadata)
    new, wrong = fit(resource, new, old, options.field_validation, outcome.warnings, duplicates)
    if subresource in _WORDED_BY_CLIENTS:
        new = resource.strategy.default(new, old)
    if not applied:
        new = tracked(context, resource, old, new, options, subresource)
    new = _prepare(context, resource, new, old, subresource)
    if options.guard is not None:
        options.guard(new, old)
    if not wrong:
        wrong = _validate(resource, new, old, subresource)
    refuse_invalid(resource, new, wrong)
    new = _generation(resource, new, old)
    new = ignore_time_only_change(old, new)
    if same(new, old):
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
    """Put back what this kind of write is not about. It is not looked at, however wrong it may be."""
    if subresource == "status":
        if not resource.custom:
            return _take(new, old, "spec")
        # Only the status of a custom resource can be written here, and who owns it.
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
    if subresource in _WORDED_BY_CLIENTS and resource.has_status:
        return _take(new, old, "status")
    return new


def _prepare(context: RegistryContext, resource: Resource, new: Object, old: Object, subresource: str) -> Object:
    """Have it admitted, and put back what no update may change."""
    strategy = resource.strategy
    if subresource == "status":
        new = strategy.prepare_status_update(new, old)
    elif subresource in _WORDED_BY_CLIENTS:
        new = strategy.admit(new, old, context.neighbours)
        new = strategy.prepare_update(new, old)
    metadata = keep_system_fields(new["metadata"], old["metadata"])
    if not metadata.get("resourceVersion"):
        metadata = {**metadata, "resourceVersion": old["metadata"]["resourceVersion"]}
    if same(metadata, old["metadata"]):
        metadata = old["metadata"]
    return new if metadata is new["metadata"] else {**new, "metadata": metadata}


def _take(obj: Object, source: Object, field: str) -> Object:
    """The object with one field as it is in another."""
    if field in source:
        return obj if field in obj and obj[field] is source[field] else {**obj, field: source[field]}
    return {key: value for key, value in obj.items() if key != field} if field in obj else obj


def _validate(resource: Resource, new: Object, old: Object, subresource: str) -> list[Cause]:
    strategy = resource.strategy
    found = validate_metadata(
        new, old, namespaced=resource.type.namespaced, name_format=strategy.name_format, custom=resource.custom
    )
    if subresource == "status":
        found += strategy.validate_status(new, old)
    elif subresource in _WORDED_BY_CLIENTS:
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
    """Whether anything of one object that its generation counts is not the same in the other."""
    for key, value in obj.items():
        before = other.get(key)
        if value is before or key == "metadata" or (has_status and key == "status"):
            continue
        if not same(value, before):
            return True
    return False


def _is_finished(resource: Resource, new: Object) -> bool:
    """Whether this update took away the last thing that kept a deleted object alive."""
    metadata = new["metadata"]
    return bool(
        metadata.get("deletionTimestamp")
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and not resource.strategy.blocks_removal(new)
    )
