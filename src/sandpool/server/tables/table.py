"""The meta.k8s.io Table of some objects."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any

from sandpool.api.columns import Column
from sandpool.api.resource import Object
from sandpool.server.resources import Resource
from sandpool.server.tables import cluster, events, network, pods, storage, workloads
from sandpool.server.tables.custom import custom_printer
from sandpool.server.tables.printer import NAME, Printer, TableColumn, name_of, value_at

_BUILT_IN: dict[str, Printer] = {
    **pods.PRINTERS,
    **workloads.PRINTERS,
    **network.PRINTERS,
    **storage.PRINTERS,
    **events.PRINTERS,
    **cluster.PRINTERS,
}


def _created_at(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), value_at(obj, "metadata", "creationTimestamp") or ""]


_ANY = Printer((NAME, TableColumn("Created At", "date")), _created_at)


def table(
    resource: Resource,
    objects: Iterable[Object],
    *,
    now: datetime,
    include_object: str = "Metadata",
    resource_version: str = "",
    continue_token: str = "",
    remaining_item_count: int | None = None,
    version: str = "v1",
    headers: bool = True,
) -> Object:
    """Make a Table with one row for each object.

    ``include_object`` is how much of the object each row contains: Metadata, None or Object. A watch sends tables of
    one row, of which only the first has ``headers``.
    """
    objects = list(objects)
    printer = _printer(resource, objects)
    metadata: Object = {}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    if continue_token:
        metadata["continue"] = continue_token
    if remaining_item_count is not None:
        metadata["remainingItemCount"] = remaining_item_count
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in printer.columns] if headers else None,
        "rows": [_row(printer, obj, now, include_object, version) for obj in objects],
    }


def _printer(resource: Resource, objects: list[Object]) -> Printer:
    if objects and objects[0].get("kind") == "Scale" and resource.type.kind != "Scale":
        return workloads.SCALE
    if resource.custom:
        return _custom(resource.columns)
    return _BUILT_IN.get(resource.type.group_resource, _ANY)


@cache
def _custom(columns: tuple[Column, ...]) -> Printer:
    return custom_printer(columns)


def _definition(column: TableColumn) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(printer: Printer, obj: Object, now: datetime, include_object: str, version: str) -> Object:
    row: Object = {"cells": printer.cells(obj, now)}
    if conditions := printer.conditions(obj):
        row["conditions"] = conditions
    if include_object == "Object":
        row["object"] = obj
    else:
        row["object"] = None if include_object == "None" else partial_metadata(obj, version)
    return row


def partial_metadata(obj: Object, version: str = "v1") -> Object:
    """The meta.k8s.io PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj.get("metadata") or {},
    }


def partial_metadata_list(listing: Object, version: str = "v1") -> Object:
    """The meta.k8s.io PartialObjectMetadataList of a list."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": listing.get("metadata") or {},
        "items": [partial_metadata(obj, version) for obj in listing.get("items") or ()],
    }
