"""Who owns whom: the graph of owner references over everything that is stored.

The graph holds uids and places, nothing else, and follows the feed of committed changes. Asking it what became of an
owner costs a few dictionary lookups, so sound objects cost next to nothing and never have to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from sandpool.api.resource import Object
from sandpool.server.kinds.metadata import FOREGROUND

# How many objects are remembered to be gone, for references whose kind is not served any more.
_REMEMBERED: Final = 10_000


class Ref(NamedTuple):
    """Where an object is."""

    resource: str  # group resource, e.g. "sandboxes.agents.x-k8s.io"
    namespace: str  # "" for a cluster-scoped object
    name: str


class OwnerKind(NamedTuple):
    """What an owner reference means by a kind."""

    resource: str
    namespaced: bool


class OwnerState(Enum):
    SOLID = "it is there"
    WAITING = "it is there, and waits for its dependents to go"
    ABSENT = "there is no such object"
    UNKNOWN = "nobody can tell, because its kind is not served"


class Ownership:
    def __init__(self, kind: Callable[[str, str], OwnerKind | None]) -> None:
        self.kind = kind  # what (apiVersion, kind) means; None if no such kind is served
        self.waiting: dict[str, Ref] = {}  # by uid: the objects in foreground deletion
        self._alive: dict[str, Ref] = {}  # by uid: every object there is
        self._owners: dict[Ref, tuple[str, ...]] = {}  # the uids of the owners of every object that names any
        # The inverse of _owners, also for owners that are not there: by uid of the owner, who names it, and whether
        # it holds up the deletion of the owner (None: not looked at yet).
        self._dependents: dict[str, dict[Ref, bool | None]] = {}
        self._gone: dict[str, None] = {}  # uids that were seen to go, oldest first

    def owners(self, ref: Ref) -> tuple[str, ...]:
        return self._owners.get(ref, ())

    def dependents(self, uid: str) -> Mapping[Ref, bool | None]:
        return self._dependents.get(uid, {})

    def add(self, ref: Ref, uid: str, owners: Mapping[str, bool | None]) -> None:
        """Record an object and its owners by uid, replacing what was known about it."""
        self._alive[uid] = ref
        if owners or ref in self._owners:
            self._link(ref, owners)

    def remove(self, ref: Ref, uid: str) -> None:
        if self._alive.get(uid) == ref:
            del self._alive[uid]
        self.waiting.pop(uid, None)
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        self._link(ref, {})

    def settle(self, dependent: Ref, uid: str, blocks: bool) -> None:
        """Record what was found out about a dependent that had not been looked at."""
        self._dependents[uid][dependent] = blocks

    def note_deletion(self, ref: Ref, metadata: Object) -> bool:
        """Keep track of foreground deletions; True when this object's has just begun."""
        uid = metadata["uid"]
        if metadata.get("deletionTimestamp") and FOREGROUND in (metadata.get("finalizers") or ()):
            begun = uid not in self.waiting
            self.waiting[uid] = ref
            return begun
        self.waiting.pop(uid, None)
        return False

    def state(self, reference: Object, namespace: str) -> OwnerState:
        """What became of an owner. A reference means what is at its coordinates, if that has its uid."""
        uid = reference.get("uid", "")
        kind = self.kind(reference.get("apiVersion", ""), reference.get("kind", ""))
        if kind is None:
            return OwnerState.ABSENT if uid in self._gone else OwnerState.UNKNOWN
        place = Ref(kind.resource, namespace if kind.namespaced else "", reference.get("name", ""))
        if self._alive.get(uid) != place:
            return OwnerState.ABSENT
        return OwnerState.WAITING if uid in self.waiting else OwnerState.SOLID

    def is_plausible(self, uid: str, dependent: Ref) -> bool:
        """Whether an owner is sound as far as its uid tells, which is all that is known of one at the start."""
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
