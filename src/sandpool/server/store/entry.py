"""One stored object: its encoded bytes and the few parsed fields that selecting, owning and deleting need.

Keeping objects as bytes is what makes a hundred thousand of them affordable: a decoded Sandbox is five times its
encoded size and every dict in it is work for the garbage collector, while bytes are invisible to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from sandpool.api.resource import Object

Key = tuple[str, str]  # (namespace, name); the namespace of a cluster-scoped object is ""

_NO_LABELS: Mapping[str, str] = {}


class Entry:
    __slots__ = ("encoded", "key", "labels", "owners", "revision", "row", "uid")

    def __init__(self, key: Key, revision: int, row: int, object: Object, encoded: bytes) -> None:
        metadata: Mapping[str, Any] = object["metadata"]
        self.key = key
        self.revision = revision
        self.row = row  # where the journal keeps it; the same for the whole life of the object
        self.encoded = encoded
        self.uid: str = metadata.get("uid", "")
        self.labels: Mapping[str, str] = metadata.get("labels") or _NO_LABELS
        owners = metadata.get("ownerReferences")
        self.owners: tuple[str, ...] = tuple(o.get("uid", "") for o in owners) if owners else ()

    def decode(self) -> Object:
        object: Object = orjson.loads(self.encoded)
        return object


class Change:
    """One committed write, as watches see it. ``entry`` of a deletion holds the last state with the new revision."""

    __slots__ = ("_object", "entry", "previous", "renderings", "revision", "type")

    def __init__(self, type: str, entry: Entry, previous: Entry | None, object: Object | None) -> None:
        self.type = type  # ADDED, MODIFIED or DELETED
        self.revision = entry.revision
        self.entry = entry
        self.previous = previous
        self._object = object
        # What watches made of this change, by whatever they key it with: encoded once, shared by every stream.
        self.renderings: dict[Any, Any] = {}

    @property
    def object(self) -> Object:
        return self._object if self._object is not None else self.entry.decode()

    def settle(self) -> None:
        """Drop what only live watches profit from; what stays in the history is the encoded state."""
        self._object = None
        self.renderings.clear()
