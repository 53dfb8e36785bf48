"""Tracking of creates, updates and patches: the manager that changes a field becomes its only owner.

This is on the path of every write, so the common case is short: compare, find that no other manager owns a changed
field, and find that the writer owns them already.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.server.apply.comparison import Changes, compare, created
from sandpool.server.apply.fieldset import FieldSet
from sandpool.server.apply.managed_fields import (
    UPDATE,
    InvalidManagedFields,
    cap_updaters,
    contains_all,
    entry,
    identity,
    insert_sorted,
    intersects,
    is_reset,
    owned_fields,
    read,
    with_managed_fields,
    with_owned_fields,
    with_time,
)
from sandpool.server.apply.reset_fields import SERVER_MANAGED
from sandpool.server.apply.schema_paths import InvalidListItem, reconcile

UNKNOWN: Final = "unknown"  # the manager of a client without fieldManager and User-Agent


def track_update(
    old: Object | None,
    new: Object,
    *,
    shape: Shape,
    manager: str,
    subresource: str,
    api_version: str,
    now: str,
    reset: FieldSet | None,
) -> Object:
    """Return ``new`` with the managedFields that result from ``manager`` changing ``old`` into it.

    ``old`` is None for a create. ``now`` is a time such as ``2030-01-31T12:00:00Z``. ``reset`` are the fields that this
    write does not change, whatever ``new`` contains. A new object that cannot be compared gets no managers; validation
    will refuse it for the same reason.
    """
    entries = _before(old, new, subresource)
    if not entries and old is not None:
        return with_managed_fields(new, [])  # tracking was switched off by a reset; an apply switches it on again
    try:
        changes = changed(old, new, shape, reset)
    except InvalidListItem:
        return with_managed_fields(new, [])
    writer = entry(manager or UNKNOWN, UPDATE, api_version, subresource, now)
    return with_managed_fields(new, cap_updaters(take_ownership(entries, changes, shape, writer)))


def _before(old: Object | None, new: Object, subresource: str) -> list[Object]:
    """The entries before the write.

    A client may set managedFields, except through a subresource. A client that sends none does not delete them.
    """
    kept: list[Object] = (old["metadata"].get("managedFields") or []) if old is not None else []
    given = new["metadata"].get("managedFields")
    if given is kept or subresource or given is None:
        return kept
    if is_reset(given):
        return []
    try:
        return read(given)
    except InvalidManagedFields:
        return kept


def changed(old: Object | None, new: Object, shape: Shape, reset: FieldSet | None) -> Changes:
    """The changes of a write; ``old`` is None for a create. Raises InvalidListItem."""
    written, removed = created(new, shape) if old is None else compare(old, new, shape)
    if reset is None:
        return written, removed
    return written.without(reset), removed.without(reset)


def take_ownership(entries: list[Object], changes: Changes, shape: Shape, writer: Object) -> list[Object]:
    """The entries after ``writer``, an entry without fields, made the changes.

    The writer owns what it wrote in addition to what it owned before. Other managers lose what it wrote or removed.
    """
    written, removed = changes
    touched = written | removed
    claimed = written - SERVER_MANAGED
    manager, writer_identity = writer["manager"], identity(writer)
    mine: Object | None = None
    left: list[Object] = []
    for each in entries:
        fields = each["fieldsV1"]
        if each.get("manager") == manager and claimed and identity(each) == writer_identity:
            mine = each
        elif not intersects(fields, touched):
            if fields:
                left.append(each)
        elif kept := reconcile(owned_fields(each), shape) - written - removed:
            left.append(with_owned_fields(each, kept))
    if (
        mine is not None
        and contains_all(mine["fieldsV1"], claimed)
        and not (removed and intersects(mine["fieldsV1"], removed))
    ):
        insert_sorted(left, with_time(mine, writer["time"]))  # it has written these fields before, as most writers have
    elif mine is not None:
        insert_sorted(
            left, with_owned_fields(writer, reconcile(owned_fields(mine), shape) - written - removed | claimed)
        )
    elif claimed:
        insert_sorted(left, with_owned_fields(writer, claimed))
    return left
