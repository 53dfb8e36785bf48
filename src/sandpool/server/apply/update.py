"""Tracking of creates, updates and patches: the manager that changes a field becomes its only owner.

This is on the path of every write, and thousands of objects of one kind are written in the same few ways. The managers
after a write depend on the managers before it and on the paths that it changed, not on any value. So they are computed
once for each such pair and remembered (``_remembered_owners``). The pair is one JSON text, from which the result is
computed, too: there is no second form of it.

Three things in that text differ from object to object although nothing depends on them but their equality and their
order: times, the uids of owners and the addresses of pods. They are *variables*. Each is replaced by a placeholder
with its rank among all variables of the write before the result is looked up, and put back into the result.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.server.apply.caches import cached, charge
from sandpool.server.apply.comparison import Changes, PathTree, changes_of, compare_trees, created_trees
from sandpool.server.apply.fieldset import CACHE_SIZE, FieldSet
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

# The variables of a write, as JSON text. The element of an owner or address is a string in JSON, so its quotes are
# escaped.
_VARIABLE: Final = re.compile(rb'"time":"[^"]*"|k:\{\\"(?:uid|ip)\\":\\"[^"\\$]*\\"\}"')
# An element with such a key that is no variable: it has other keys, too, its escaped text sorts differently, or it
# could be taken for a placeholder.
_IRREGULAR: Final = re.compile(rb'k:\{\\"(?:uid|ip)\\":(?!\\"[^"\\$]*\\"\}")')
# By the beginning of a variable; the number is filled in.
_PLACEHOLDERS: Final = {
    b'"time"': [b'"time":"$%02d"' % number for number in range(100)],
    b'k:{\\"u': [b'k:{\\"uid\\":\\"$%02d\\"}"' % number for number in range(100)],
    b'k:{\\"i': [b'k:{\\"ip\\":\\"$%02d\\"}"' % number for number in range(100)],
}


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
        trees = created_trees(new, shape) if old is None else compare_trees(old, new, shape)
    except InvalidListItem:
        return with_managed_fields(new, [])
    text = orjson.dumps((entries, trees, {"time": now}))
    variables = sorted(set(_VARIABLE.findall(text)))
    if len(variables) > 100 or _IRREGULAR.search(text) is not None:
        variables = []  # as it is: remembered for this object only
    places = [_PLACEHOLDERS[variable[:6]][rank] for rank, variable in enumerate(variables)]
    for variable, place in zip(variables, places, strict=True):
        text = text.replace(variable, place)
    owners = _remembered_owners(text, shape, manager or UNKNOWN, api_version, subresource, reset)
    for variable, place in zip(variables, places, strict=True):
        owners = owners.replace(place, variable)
    return with_managed_fields(new, _decoded(owners))


@cached(1024)
def _decoded(owners: bytes) -> list[Object]:
    """The entries of a text. Objects that were written in the same way in the same second share them."""
    charge(len(owners))
    entries: list[Object] = orjson.loads(owners)
    return entries


@cached(CACHE_SIZE)
def _remembered_owners(
    text: bytes, shape: Shape, manager: str, api_version: str, subresource: str, reset: FieldSet | None
) -> bytes:
    """The entries after a write as JSON. The text holds the entries before it, the path trees of its changes and its
    time."""
    entries, trees, written_at = orjson.loads(text)
    written, removed = map(_as_tuples, trees)
    writer = entry(manager, UPDATE, api_version, subresource, written_at["time"])
    changes = _without(changes_of((written, removed)), reset)
    owners = orjson.dumps(cap_updaters(take_ownership(entries, changes, shape, writer)))
    charge(len(text) + len(owners))
    return owners


def _as_tuples(tree: Any) -> PathTree:
    """A path tree that JSON has made lists of."""
    return tuple([_as_tuples(each) if each.__class__ is list else each for each in tree])


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


def changed(old: Object, new: Object, shape: Shape, reset: FieldSet | None) -> Changes:
    """The changes of a write. Raises InvalidListItem."""
    return _without(changes_of(compare_trees(old, new, shape)), reset)


def _without(changes: Changes, reset: FieldSet | None) -> Changes:
    if reset is None:
        return changes
    written, removed = changes
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
