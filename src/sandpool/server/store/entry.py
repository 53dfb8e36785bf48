"""One stored object: its encoded bytes and the few parsed fields that selecting, owning and deleting need.

Keeping objects as bytes is what makes a hundred thousand of them affordable: a decoded Sandbox is five times its
encoded size and every dict in it is work for the garbage collector, while bytes are invisible to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from sandpool.api.resource import Object

Key = tuple[str, str]  # (namespace, name); the namespace of a cluster-scoped object is ""
Owners = tuple[str, ...]  # the uids of an object's owners

_NO_LABELS: Mapping[str, str] = {}


class _Owner(msgspec.Struct):
    uid: str = ""


class _Metadata(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: list[_Owner] | None = None


class _Stored(msgspec.Struct):
    metadata: _Metadata


# Reads what an entry needs and skips the rest of the object, at a fifth of the cost of decoding it all.
_read = msgspec.json.Decoder(_Stored).decode


def encode(object: Object) -> bytes:
    """An object as JSON, in as many bytes as it takes: the encoder's result keeps the buffer it was written into, which
    is several KB larger, and what is stored stays."""
    return bytes(memoryview(orjson.dumps(object)))


class Entry:
    __slots__ = ("_object", "encoded", "filled", "key", "labels", "owners", "revision", "row", "uid")

    def __init__(
        self, key: Key, revision: int, row: int, encoded: bytes, uid: str, labels: Mapping[str, str], owners: Owners
    ) -> None:
        self.key = key
        self.revision = revision
        self.row = row  # where the journal keeps it; the same for the whole life of the object
        self.encoded = encoded
        self.uid = uid
        self.labels = labels
        self.owners = owners
        self._object: Object | None = None
        self.filled: Any = None  # what filled in the defaults last, so that it is done once per change of the schema

    @classmethod
    def of(cls, key: Key, revision: int, row: int, object: Object, encoded: bytes) -> Entry:
        """The entry of an object that is at hand."""
        metadata: Mapping[str, Any] = object["metadata"]
        owners = metadata.get("ownerReferences")
        return cls(
            key,
            revision,
            row,
            encoded,
            metadata.get("uid", ""),
            metadata.get("labels") or _NO_LABELS,
            tuple([owner.get("uid", "") for owner in owners]) if owners else (),
        )

    @classmethod
    def stored(cls, key: Key, revision: int, row: int, encoded: bytes) -> Entry:
        """The entry of an object of which there are only the bytes."""
        metadata = _read(encoded).metadata
        owners = tuple([owner.uid for owner in metadata.ownerReferences or ()])
        return cls(key, revision, row, encoded, metadata.uid, metadata.labels or _NO_LABELS, owners)

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
        self.encoded = encode(object)
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
