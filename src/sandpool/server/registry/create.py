"""The create verb."""

from __future__ import annotations

import uuid
from typing import Any

from sandpool.api.names import generate_name
from sandpool.api.resource import Key, Object, shared_key
from sandpool.kube.errors import AlreadyExists, ApiError, already_exists
from sandpool.server.kinds.metadata import drop_system_fields, validate_metadata
from sandpool.server.registry.context import Outcome, RegistryContext
from sandpool.server.registry.decoding import expect_kind, expect_name, expect_namespace, fit, refuse_invalid
from sandpool.server.registry.offload import rejoin_loop
from sandpool.server.registry.tracking import tracked
from sandpool.server.request.options import WriteOptions
from sandpool.server.resources import Resource

# Attempts to generate a free name before the client gets AlreadyExists.
_NAME_ATTEMPTS = 8


async def create(
    context: RegistryContext,
    resource: Resource,
    namespace: str,
    body: Any,
    options: WriteOptions,
    *,
    name: str = "",
    duplicates: tuple[str, ...] = (),
    applied: bool = False,
) -> Outcome:
    """Create an object from a request body. ``name`` is the name in the URL, if any. ``applied``: server-side apply has
    already set field ownership."""
    outcome = Outcome(None, created=True)
    obj = expect_kind(resource, body)
    obj = {**obj, "metadata": _address(resource, obj.get("metadata") or {}, namespace, name)}
    if resource.custom and resource.has_status:
        obj = {key: value for key, value in obj.items() if key != "status"}
    obj, causes = fit(resource, obj, None, options.field_validation, outcome.warnings, duplicates)
    if resource.type.namespaced:
        context.check_namespace(resource, obj["metadata"])
    if obj["metadata"].get("resourceVersion"):
        raise ApiError("resourceVersion should not be set on objects to be created", code=500, reason="")
    obj = resource.strategy.default(obj)
    sent = None if applied else obj["metadata"]
    if not applied:
        obj = tracked(context, resource, None, obj, options)
    obj = resource.strategy.admit(obj, None, context.neighbours)
    obj = new_object(context, resource, obj)
    if options.guard is not None:
        options.guard(obj, None)
    if not causes:
        causes = validate_metadata(
            obj,
            None,
            namespaced=resource.type.namespaced,
            name_format=resource.strategy.name_format,
            custom=resource.custom,
            sent=sent,
        )
        causes += resource.strategy.validate(obj, None)
    refuse_invalid(resource, obj, causes)
    outcome.warnings.extend(resource.strategy.warnings(obj, None))
    key = shared_key(namespace, obj["metadata"]["name"])
    if context.offloaded:
        await rejoin_loop()
        if resource.type.namespaced:
            context.check_namespace(resource, obj["metadata"])  # it may be terminating by now
    await _check_free(context, resource, key)
    if options.dry_run:
        outcome.object = obj
        return outcome
    saved = await context.put(resource, obj)
    outcome.object, outcome.encoded = saved.object, saved.encoded
    return outcome


async def _check_free(context: RegistryContext, resource: Resource, key: Key) -> None:
    """Raise AlreadyExists if the key is taken. Does not yield otherwise, so the key is still free for the write."""
    taken = context.store.head(resource.storage, key)
    if taken is None:
        return
    await context.settle(resource, key)  # the client will read the existing object next
    error = already_exists(resource.type, key[1])
    if taken.decode()["metadata"].get("deletionTimestamp"):
        raise AlreadyExists(f"object is being deleted: {error.message}", details=error.details)
    raise error


def _address(resource: Resource, metadata: Object, namespace: str, name: str) -> Object:
    """Set name and namespace from the URL. The body may repeat them but not contradict them."""
    if resource.type.namespaced:
        expect_namespace(resource, metadata, namespace)
        metadata = {**metadata, "namespace": namespace}
    elif "namespace" in metadata:
        metadata = {key: value for key, value in metadata.items() if key != "namespace"}
    if name:
        expect_name(metadata, name)
        metadata = {**metadata, "name": name}
    return metadata


def new_object(context: RegistryContext, resource: Resource, obj: Object) -> Object:
    """Set the fields that only the server sets on a new object."""
    metadata = drop_system_fields(obj["metadata"])
    if not metadata.get("name") and metadata.get("generateName"):
        metadata = {**metadata, "name": _free_name(context, resource, metadata)}
    metadata = {**metadata, "uid": str(uuid.UUID(int=context.rng.getrandbits(128), version=4))}
    metadata["creationTimestamp"] = context.now()
    if resource.strategy.spec_generation or resource.custom:
        metadata["generation"] = 1
    # Last, because a kind may derive fields from the name and the time.
    return resource.strategy.prepare_create({**obj, "metadata": metadata})


def _free_name(context: RegistryContext, resource: Resource, metadata: Object) -> str:
    for _ in range(_NAME_ATTEMPTS):
        name = generate_name(metadata["generateName"], context.rng)
        if context.store.head(resource.storage, Key(metadata.get("namespace", ""), name)) is None:
            break
    return name
