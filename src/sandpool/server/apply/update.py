"""Tracking creates, updates and patches: whoever changes a field owns it from then on, and the others do not.

Every write of the server passes through here, so the warm path is short: compare what was written, then three
remembered set operations for each manager.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.server.apply.changes import Changes, compare
from sandpool.server.apply.fieldset import EMPTY, FieldSet
from sandpool.server.apply.managed import (
    UPDATE,
    BadManagedFields,
    Entry,
    capped,
    is_reset,
    read,
    stored,
    with_managed_fields,
)
from sandpool.server.apply.reconcile import reconcile
from sandpool.server.apply.resets import BOOKKEEPING
from sandpool.server.apply.structure import BadItem

UNKNOWN: Final = "unknown"  # the manager of a client that gives no name and has no User-Agent


def track_update(
    old: Object | None,
    new: Object,
    *,
    shape: Shape,
    manager: str,
    subresource: str,
    api_version: str,
    now: str,
    reset: FieldSet | None = None,
    blank: Object | None = None,
) -> Object:
    """``new`` with the managedFields it has after ``manager`` made it from ``old``.

    ``old`` is None for a create; ``blank`` is then what an object of a built-in kind is before anything is set (see
    ``blank.blank``). ``now`` is a time like ``2030-01-31T12:00:00Z``; ``reset`` are the fields this write does not
    change, whatever ``new`` says. Managers of a new object that cannot be compared are not known; validation will
    refuse it for the same reason.
    """
    entries = [entry.owning(reconcile(entry.fields, shape)) for entry in _before(old, new, subresource)]
    if not entries and old is not None:
        return with_managed_fields(new, [])  # tracking was switched off by a reset; an apply switches it on again
    try:
        changes = changed(blank or {} if old is None else old, new, shape, reset)
    except BadItem:
        return with_managed_fields(new, [])
    writer = Entry(manager or UNKNOWN, UPDATE, api_version, subresource, now, EMPTY)
    return with_managed_fields(new, capped(taken(entries, changes, writer)))


def _before(old: Object | None, new: Object, subresource: str) -> Sequence[Entry]:
    """The managers there are before the write. A client may set them, but not through a subresource, and one that
    knows nothing about them and sends none does not delete them."""
    kept = old["metadata"].get("managedFields") or [] if old is not None else []
    given = new["metadata"].get("managedFields")
    if given is kept or subresource or given is None:
        return stored(kept)
    if is_reset(given):
        return []
    try:
        return read(given) or stored(kept)
    except BadManagedFields:
        return stored(kept)


def changed(old: Object, new: Object, shape: Shape, reset: FieldSet | None) -> Changes:
    """What the write changes. Raises BadItem."""
    changes = compare(old, new, shape)
    if reset is None:
        return changes
    return Changes(changes.written.without(reset), changes.removed.without(reset))


def taken(entries: Iterable[Entry], changes: Changes, writer: Entry) -> list[Entry]:
    """The entries after ``writer`` made the changes: it owns what it wrote on top of what it owned before, and nobody
    else owns what it wrote or removed."""
    owned = changes.written - BOOKKEEPING
    left = yielded(entries, changes)
    if owned:
        for position, entry in enumerate(left):
            if entry.manager == writer.manager and entry.identity == writer.identity:
                owned |= left.pop(position).fields
                break
        left.append(writer.owning(owned))
    return left


def yielded(entries: Iterable[Entry], changes: Changes) -> list[Entry]:
    """The entries without what was written or removed, and without those that have nothing left."""
    written, removed = changes
    return [entry.owning(fields) for entry in entries if (fields := entry.fields - written - removed)]
