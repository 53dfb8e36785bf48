"""The managedFields of one object: who owns which fields, by which kind of write, since when."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from sandpool.api.resource import Object
from sandpool.server.apply.fieldset import EMPTY, BadFields, FieldSet, decode

APPLY: Final = "Apply"
UPDATE: Final = "Update"
FIELDS_V1: Final = "FieldsV1"
# More update entries than this are not kept; applies are never given up, because they are what pruning goes by.
MAX_UPDATERS: Final = 10
ANCIENT: Final = "ancient-changes"

_CANONICAL_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").fullmatch


class BadManagedFields(ValueError):
    """A managedFields value that cannot be read."""


class Entry(NamedTuple):
    """What one manager owns through one kind of write.

    An updater is told from others by manager, version and subresource; an applier by manager and subresource, since
    it is the same applier when it moves on to another version of the API.
    """

    manager: str
    operation: str  # APPLY or UPDATE
    api_version: str
    subresource: str
    time: str  # "" if the fields were taken over by a write that changed nothing
    fields: FieldSet
    encoded: Object | None = None  # the form it was read from, kept while it still says the same

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return self.manager, self.operation, self.api_version if self.operation == UPDATE else "", self.subresource

    @property
    def identifier(self) -> bytes:
        """The text by which kube-apiserver knows and orders managers."""
        names = zip(("manager", "operation", "apiVersion", "subresource"), self.identity, strict=True)
        return orjson.dumps({name: value for name, value in names if value})

    def owning(self, fields: FieldSet) -> Entry:
        if fields is self.fields:
            return self
        return Entry(self.manager, self.operation, self.api_version, self.subresource, self.time, fields)

    def encode(self) -> Object:
        if self.encoded is not None:
            return self.encoded
        encoded: Object = {"manager": self.manager} if self.manager else {}
        encoded["operation"] = self.operation
        encoded["apiVersion"] = self.api_version
        if self.time:
            encoded["time"] = self.time
        encoded["fieldsType"] = FIELDS_V1
        encoded["fieldsV1"] = self.fields.fields
        if self.subresource:
            encoded["subresource"] = self.subresource
        return encoded


def stored(entries: Any) -> list[Entry]:
    """The entries of an object that has been through here before; like ``read``, but trusts what it finds."""
    found: list[Entry] = []
    for entry in entries:
        get = entry.get
        found.append(
            Entry(
                get("manager", ""),
                entry["operation"],
                entry["apiVersion"],
                get("subresource", ""),
                get("time", ""),
                decode(entry["fieldsV1"]),
                entry,
            )
        )
    return found


def read(entries: Any) -> list[Entry]:
    """The entries as a client sent them, at most one for each manager. Raises BadManagedFields."""
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise BadManagedFields("managedFields must be a list")
    found: dict[tuple[str, ...], Entry] = {}
    for position, entry in enumerate(entries):
        read = _read_entry(entry, position)
        found[read.identity] = read
    return list(found.values())


def _read_entry(entry: Any, position: int) -> Entry:
    if not isinstance(entry, dict):
        raise BadManagedFields("a managedFields entry must be an object")
    operation, version, kind = entry.get("operation"), entry.get("apiVersion"), entry.get("fieldsType")
    if operation not in (APPLY, UPDATE):
        raise BadManagedFields("operation must be `Apply` or `Update`")
    if not version:
        raise BadManagedFields("apiVersion must not be empty")
    if not kind:
        raise BadManagedFields(f"missing fieldsType in managed fields entry {position}")
    if kind != FIELDS_V1:
        raise BadManagedFields(f'invalid fieldsType "{kind}" in managed fields entry {position}')
    fields = entry.get("fieldsV1")
    try:
        owned = EMPTY if fields is None else decode(fields)
        time = _read_time(entry.get("time"))
    except (BadFields, ValueError) as error:
        raise BadManagedFields(f"error decoding versioned set: {error}") from None
    return Entry(entry.get("manager") or "", operation, version, entry.get("subresource") or "", time, owned)


def _read_time(time: Any) -> str:
    if not time:
        return ""
    if not isinstance(time, str):
        raise BadManagedFields("time must be a string")
    if _CANONICAL_TIME(time):
        return time
    return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_reset(entries: Any) -> bool:
    """Whether a client asks to forget all managers: an empty list, or one empty entry for clients that cannot send
    an empty list."""
    return isinstance(entries, list) and (not entries or (len(entries) == 1 and not entries[0]))


def capped(entries: Sequence[Entry]) -> Sequence[Entry]:
    """``entries`` with the oldest update entries merged, by version, until there are few enough."""
    updaters = [entry for entry in entries if entry.operation == UPDATE]
    excess = len(updaters) - MAX_UPDATERS
    if excess <= 0:
        return entries
    updaters.sort(key=lambda entry: (entry.time, entry.identifier))
    left = {entry.identity: entry for entry in entries}
    first_of: dict[str, Entry] = {}
    for entry in updaters:
        if excess == 0:
            break
        first = first_of.setdefault(entry.api_version, entry)
        if first is entry:
            continue
        bucket = Entry(ANCIENT, UPDATE, entry.api_version, "", entry.time, entry.fields)
        if bucket.identity not in left:
            left[bucket.identity] = left.pop(first.identity)
        left[bucket.identity] = bucket.owning(entry.fields | left[bucket.identity].fields)
        if entry.identity != bucket.identity:
            del left[entry.identity]
        excess -= 1
    return list(left.values())


def with_managed_fields(object: Object, entries: Iterable[Entry]) -> Object:
    """``object`` with these managedFields, in the order kube-apiserver gives them; without any if there are none."""
    encoded = [entry.encode() for entry in sorted(entries, key=_order)]
    metadata = object.get("metadata") or {}
    before = metadata.get("managedFields")
    if before is None and not encoded:
        return object
    if before and len(before) == len(encoded) and all(map(_identical, before, encoded)):
        return object
    metadata = {**metadata}
    if encoded:
        metadata["managedFields"] = encoded
    else:
        del metadata["managedFields"]
    return {**object, "metadata": metadata}


def without_managed_fields(object: Object) -> Object:
    return with_managed_fields(object, ())


def _order(entry: Entry) -> tuple[str, str, str, str, str]:
    # Times have one format, so they are ordered as text; no time counts as the oldest.
    return entry.operation, entry.time, entry.manager, entry.api_version, entry.subresource


def _identical(a: object, b: object) -> bool:
    return a is b
