"""The managedFields of one object.

An entry records which fields one manager owns through one operation, and since when. Entries stay in their stored
form, and their fields are decoded only when needed: most writes do not change fields of other managers, which the
encoded form shows. All stored entries come from ``read`` or ``entry``, so they are complete and canonical.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from sandpool.api.resource import Object
from sandpool.server.apply.fieldset import EMPTY, SELF, FieldSet, InvalidFieldsV1, decode

APPLY: Final = "Apply"
UPDATE: Final = "Update"
FIELDS_V1: Final = "FieldsV1"
# The limit for update entries. Apply entries are not limited, because pruning depends on them.
MAX_UPDATERS: Final = 10
ANCIENT: Final = "ancient-changes"

Identity = tuple[str, str, str, str]

_CANONICAL_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").fullmatch


class InvalidManagedFields(ValueError):
    """A malformed managedFields value."""


def entry(
    manager: str, operation: str, api_version: str, subresource: str, time: str, fields: FieldSet = EMPTY
) -> Object:
    """Make an entry. ``time`` is "" if the manager acquired the fields without changing a value."""
    made: Object = {"manager": manager} if manager else {}
    made["operation"] = operation
    made["apiVersion"] = api_version
    if time:
        made["time"] = time
    made["fieldsType"] = FIELDS_V1
    made["fieldsV1"] = fields.fields
    if subresource:
        made["subresource"] = subresource
    return made


def identity(entry: Object) -> Identity:
    """The key of a manager: name, version and subresource of an updater; name and subresource of an applier.

    An applier that moves to another API version is still the same manager.
    """
    operation = entry["operation"]
    version = entry["apiVersion"] if operation == UPDATE else ""
    return entry.get("manager", ""), operation, version, entry.get("subresource", "")


def identifier(entry: Object) -> bytes:
    """kube-apiserver's textual identifier of a manager, by which it orders conflicts."""
    names = zip(("manager", "operation", "apiVersion", "subresource"), identity(entry), strict=True)
    return orjson.dumps({name: value for name, value in names if value})


def owned_fields(entry: Object) -> FieldSet:
    return decode(entry["fieldsV1"])


def with_owned_fields(entry: Object, fields: FieldSet) -> Object:
    return {**entry, "fieldsV1": fields.fields}


def with_time(entry: Object, time: str) -> Object:
    """Return the entry with another time; "" for none."""
    if time and "time" in entry:
        return entry if entry["time"] == time else {**entry, "time": time}
    return _made_of(entry, time)


def _made_of(entry_: Object, time: str) -> Object:
    manager, operation, _, subresource = identity(entry_)
    return entry(manager, operation, entry_["apiVersion"], subresource, time, owned_fields(entry_))


def sort_key(entry: Object) -> tuple[str, str, str, str, str]:
    """kube-apiserver's order of entries. Times have one format, so they sort as text; no time sorts first."""
    get = entry.get
    return entry["operation"], get("time", ""), get("manager", ""), entry["apiVersion"], get("subresource", "")


def insert_sorted(entries: list[Object], entry: Object) -> None:
    """Insert an entry into sorted entries, searching from the end, where the entry of a writer belongs."""
    key = sort_key(entry)
    position = len(entries)
    while position and sort_key(entries[position - 1]) > key:
        position -= 1
    entries.insert(position, entry)


def intersects(encoded: Object, fields: FieldSet) -> bool:
    """Whether an encoded set contains one of these fields, or a field below one of them."""
    for path, members in fields.branches:
        node: Object | None = encoded
        for element in path:
            node = node.get(element) if node else None
        if node and not members.isdisjoint(node):
            return True
    return False


def contains_all(encoded: Object, fields: FieldSet) -> bool:
    """Whether an encoded set contains all of these fields."""
    for path, members in fields.branches:
        node: Object | None = encoded
        for element in path:
            node = node.get(element) if node else None
        if not node:
            return False
        for element in members:
            below = node.get(element)
            if below is None or (below and SELF not in below):
                return False
    return True


def read(entries: Any) -> list[Object]:
    """Read the entries that a client sent: sorted, at most one per manager. Raises InvalidManagedFields."""
    if not isinstance(entries, list):
        raise InvalidManagedFields("managedFields must be a list")
    found = {identity(each): each for each in map(_read_entry, entries, range(len(entries)))}
    return sorted(found.values(), key=sort_key)


def _read_entry(given: Any, position: int) -> Object:
    if not isinstance(given, dict):
        raise InvalidManagedFields("a managedFields entry must be an object")
    operation, version, kind = given.get("operation"), given.get("apiVersion"), given.get("fieldsType")
    if operation not in (APPLY, UPDATE):
        raise InvalidManagedFields("operation must be `Apply` or `Update`")
    if not version:
        raise InvalidManagedFields("apiVersion must not be empty")
    if not kind:
        raise InvalidManagedFields(f"missing fieldsType in managed fields entry {position}")
    if kind != FIELDS_V1:
        raise InvalidManagedFields(f'invalid fieldsType "{kind}" in managed fields entry {position}')
    fields = given.get("fieldsV1")
    try:
        decoded = EMPTY if fields is None else decode(fields)
        time = _read_time(given.get("time"))
    except (InvalidFieldsV1, ValueError) as error:
        raise InvalidManagedFields(f"error decoding versioned set: {error}") from None
    return entry(given.get("manager") or "", operation, version, given.get("subresource") or "", time, decoded)


def _read_time(time: Any) -> str:
    if not time:
        return ""
    if not isinstance(time, str):
        raise InvalidManagedFields("time must be a string")
    if _CANONICAL_TIME(time):
        return time
    return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_reset(entries: Any) -> bool:
    """Whether a client resets managedFields: an empty list, or one empty entry from clients that cannot send that."""
    return isinstance(entries, list) and (not entries or (len(entries) == 1 and not entries[0]))


def cap_updaters(entries: list[Object]) -> list[Object]:
    """Merge the oldest update entries, by version, until there are at most ``MAX_UPDATERS``."""
    if len(entries) <= MAX_UPDATERS:
        return entries
    updaters = [each for each in entries if each["operation"] == UPDATE]
    excess = len(updaters) - MAX_UPDATERS
    if excess <= 0:
        return entries
    updaters.sort(key=lambda each: (each.get("time", ""), identifier(each)))
    left = {identity(each): each for each in entries}
    first_of: dict[str, Object] = {}
    for each in updaters:
        version = each["apiVersion"]
        first = first_of.setdefault(version, each)
        if first is each:
            continue
        bucket = entry(ANCIENT, UPDATE, version, "", each.get("time", ""))
        if identity(bucket) not in left:
            left[identity(bucket)] = left.pop(identity(first))
        left[identity(bucket)] = with_owned_fields(bucket, owned_fields(each) | owned_fields(left[identity(bucket)]))
        # This may delete the bucket itself, if it is younger than another entry. kube-apiserver does the same.
        del left[identity(each)]
        excess -= 1
        if excess == 0:
            break
    return sorted(left.values(), key=sort_key)


def with_managed_fields(object: Object, entries: list[Object]) -> Object:
    """Return the object with these sorted managedFields, or without the field if there are none."""
    metadata = object.get("metadata") or {}
    if entries:
        if metadata.get("managedFields") == entries:
            return object
        return {**object, "metadata": {**metadata, "managedFields": entries}}
    if "managedFields" not in metadata:
        return object
    return {**object, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def ignore_time_only_change(old: Object, new: Object) -> Object:
    """Return ``old`` if ``new`` differs only in times of managedFields: such a write is a no-op."""
    before, after = old["metadata"].get("managedFields"), new["metadata"].get("managedFields")
    if not before or not after or before is after or with_managed_fields(new, before) != old:
        return new
    return old if list(map(_timeless, before)) == list(map(_timeless, after)) else new


def _timeless(entry: Object) -> Object:
    return {name: value for name, value in entry.items() if name != "time"}
