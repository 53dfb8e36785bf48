"""Responses as the Table or PartialObjectMetadata that the client negotiated."""

from __future__ import annotations

from datetime import datetime

from sandpool.api.resource import Object
from sandpool.kube.errors import BadRequest, NotAcceptable
from sandpool.server.request.negotiation import Negotiated
from sandpool.server.resources import Resource
from sandpool.server.tables.table import partial_metadata, partial_metadata_list, table

_INCLUDE_OBJECT = ("Metadata", "Object", "None")


def transform_response(
    form: Negotiated, resource: Resource, answer: Object, *, now: datetime, include_object: str = ""
) -> Object:
    """Transform an object or a list of ``resource``. ``include_object`` is the query parameter.

    A Status is never transformed.
    """
    if not form.as_ or answer.get("kind") == "Status":
        return answer
    is_list = answer.get("kind") == resource.type.list_kind
    if form.as_ == "Table":
        metadata = answer.get("metadata") or {}
        return table(
            resource,
            answer.get("items") or [] if is_list else [answer],
            now=now,
            include_object=check_include_object(include_object),
            resource_version=metadata.get("resourceVersion") or "",
            continue_token=metadata.get("continue") or "",
            remaining_item_count=metadata.get("remainingItemCount"),
            version=form.version,
        )
    if (form.as_ == "PartialObjectMetadataList") != is_list:
        what = "is a list" if is_list else "is not a list"
        raise NotAcceptable(f"you requested {form.as_}, but the requested object {what} ({answer.get('kind')})")
    return partial_metadata_list(answer, form.version) if is_list else partial_metadata(answer, form.version)


def transform_event(
    form: Negotiated, resource: Resource, obj: Object, *, now: datetime, include_object: str = "", first: bool = False
) -> Object:
    """Transform the object of a watch event. Only the ``first`` table has column definitions."""
    if not form.as_ or obj.get("kind") == "Status":
        return obj
    if form.as_ == "Table":
        return table(
            resource,
            [obj],
            now=now,
            include_object=check_include_object(include_object),
            resource_version=(obj.get("metadata") or {}).get("resourceVersion") or "",
            version=form.version,
            headers=first,
        )
    return partial_metadata(obj, form.version)


def check_include_object(value: str) -> str:
    """Validate the query parameter includeObject; empty means Metadata."""
    if value and value not in _INCLUDE_OBJECT:
        raise BadRequest(
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{value}": '
            "must be 'Metadata', 'Object', 'None', or empty"
        )
    return value or "Metadata"
