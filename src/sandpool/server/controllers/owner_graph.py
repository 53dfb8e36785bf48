"""The graph of owner references over all stored objects.

The graph holds uids and references only, and follows committed changes. The state of an owner is a few dictionary
lookups, so objects with live owners are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from itertools import repeat
from typing import Final, NamedTuple

from sandpool.api.resource import Object
from sandpool.server.kinds.metadata import FOREGROUND

# Deleted uids to remember, for references to kinds that are no longer served.
_DELETED_UIDS: Final = 10_000
_NO_TEXT: Final = repeat("")


class Ref(NamedTuple):
    """The key of an object."""

    resource: str  # group resource, e.g. "sandboxes.agents.x-k8s.io"
    namespace: str  # "" for a cluster-scoped object
    name: str


class OwnerKind(NamedTuple):
    """The resource behind the kind of an owner reference."""

    resource: str
    namespaced: bool


class OwnerState(Enum):
    SOLID = "exists"
    WAITING = "in foreground deletion"
    ABSENT = "does not exist"
    UNKNOWN = "unknown: its kind is not served"


class OwnerGraph:
    def __init__(self, kind: Callable[[str, str], OwnerKind | None]) -> None:
        self.kind = kind  # resolves (apiVersion, kind); None if the kind is not served
        self.waiting: dict[str, Ref] = {}  # by uid: the objects in foreground deletion
        self._alive: dict[str, Ref] = {}  # by uid: all objects
        self._owners: dict[Ref, tuple[str, ...]] = {}  # owner uids of every object with owners
        # The inverse of _owners, also for missing owners: by owner uid, its dependents and whether each blocks the
        # deletion of the owner (None: not read yet).
        self._dependents: dict[str, dict[Ref, bool | None]] = {}
        self._gone: dict[str, None] = {}  # uids of deleted objects, oldest first

    def owners(self, ref: Ref) -> tuple[str, ...]:
        return self._owners.get(ref, ())

    def dependents(self, uid: str) -> Mapping[Ref, bool | None]:
        return self._dependents.get(uid, {})

    def add(self, ref: Ref, uid: str, owners: Mapping[str, bool | None]) -> None:
        """Record an object and its owners by uid, replacing earlier records."""
        self._alive[uid] = ref
        if owners or ref in self._owners:
            self._link(ref, owners)

    def remove(self, ref: Ref, uid: str) -> None:
        if self._alive.get(uid) == ref:
            del self._alive[uid]
        self.waiting.pop(uid, None)
        self._gone[uid] = None
        if len(self._gone) > _DELETED_UIDS:
            del self._gone[next(iter(self._gone))]
        self._link(ref, {})

    def set_blocking(self, dependent: Ref, uid: str, blocks: bool) -> None:
        """Record whether a dependent blocks the deletion of its owner."""
        self._dependents[uid][dependent] = blocks

    def note_deletion(self, ref: Ref, metadata: Object) -> bool:
        """Track foreground deletions; returns True when the deletion of this object has just begun."""
        uid = metadata["uid"]
        if metadata.get("deletionTimestamp") and FOREGROUND in (metadata.get("finalizers") or ()):
            begun = uid not in self.waiting
            self.waiting[uid] = ref
            return begun
        self.waiting.pop(uid, None)
        return False

    def state(self, reference: Object, namespace: str) -> OwnerState:
        """The state of an owner. A reference matches the object at its coordinates if the uid is equal."""
        uid, api_version, kind_name, name = map(reference.get, ("uid", "apiVersion", "kind", "name"), _NO_TEXT)
        kind = self.kind(api_version, kind_name)
        if kind is None:
            return OwnerState.ABSENT if uid in self._gone else OwnerState.UNKNOWN
        expected = Ref(kind.resource, namespace if kind.namespaced else "", name)
        if self._alive.get(uid) != expected:
            return OwnerState.ABSENT
        return OwnerState.WAITING if uid in self.waiting else OwnerState.SOLID

    def is_plausible(self, uid: str, dependent: Ref) -> bool:
        """Whether an object with this UID exists that could own ``dependent``: one of its namespace or of the cluster,
        and not in foreground deletion. At start-up nothing but the UID of an owner is known."""
        owner = self._alive.get(uid)
        return owner is not None and owner.namespace in ("", dependent.namespace) and uid not in self.waiting

    def _link(self, ref: Ref, owners: Mapping[str, bool | None]) -> None:
        for uid in self._owners.get(ref, ()):
            if uid not in owners:
                dependents = self._dependents[uid]
                del dependents[ref]
                if not dependents:
                    del self._dependents[uid]
        for uid, blocks in owners.items():
            self._dependents.setdefault(uid, {})[ref] = blocks
        if owners:
            self._owners[ref] = tuple(owners)
        else:
            self._owners.pop(ref, None)
