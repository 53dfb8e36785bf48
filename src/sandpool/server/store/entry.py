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
    __slots__ = ("_object", "encoded", "filled", "key", "labels", "owners", "revision", "row", "uid")

    def __init__(self, key: Key, revision: int, row: int, object: Object, encoded: bytes) -> None:
        metadata: Mapping[str, Any] = object["metadata"]
        self.key = key
        self.revision = revision
        self.row = row  # where the journal keeps it; the same for the whole life of the object
        self.encoded = encoded
        self._object: Object | None = None
        self.filled: Any = None  # what filled in the defaults last, so that it is done once per change of the schema
        self.uid: str = metadata.get("uid", "")
        self.labels: Mapping[str, str] = metadata.get("labels") or _NO_LABELS
        owners = metadata.get("ownerReferences")
        self.owners: tuple[str, ...] = tuple(o.get("uid", "") for o in owners) if owners else ()

    def decode(self) -> Object:
        if self._object is not None:
            return self._object
        object: Object = orjson.loads(self.encoded)
        return object

    def keep(self, object: Object) -> None:
        """Keep the decoded object at hand, until ``forget``."""
        self._object = object

    def forget(self) -> None:
        self._object = None

    def replace(self, object: Object) -> None:
        """Show another form of the same state from now on. What is on disk stays as it is."""
        self.encoded = orjson.dumps(object)
        self._object = object if self._object is not None else None


class Change:
    """One committed write, as watches see it. ``entry`` of a deletion holds the last state with the new revision."""

    __slots__ = ("entry", "previous", "renderings", "revision", "type")

    def __init__(self, type: str, entry: Entry, previous: Entry | None) -> None:
        self.type = type  # ADDED, MODIFIED or DELETED
        self.revision = entry.revision
        self.entry = entry
        self.previous = previous
        # What watches made of this change, by whatever they key it with: encoded once, shared by every stream.
        self.renderings: dict[Any, Any] = {}

    @property
    def object(self) -> Object:
        return self.entry.decode()
