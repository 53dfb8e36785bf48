"""Field ownership of plain writes (managedFields)."""

from __future__ import annotations

from sandpool.api.resource import Object
from sandpool.server.apply import reset_fields, track_update
from sandpool.server.registry.context import RegistryContext
from sandpool.server.request.options import WriteOptions
from sandpool.server.resources import Resource


def tracked(
    context: RegistryContext,
    resource: Resource,
    old: Object | None,
    new: Object,
    options: WriteOptions,
    subresource: str = "",
) -> Object:
    """Record the writer as the owner of the fields it changed. Call it before admission: fields that the server adds
    have no owner."""
    return track_update(
        old,
        new,
        shape=resource.typed,
        manager=options.manager,
        subresource=subresource,
        api_version=resource.type.api_version,
        now=context.now(),
        reset=reset_fields(resource.type, subresource, custom=resource.custom),
    )
