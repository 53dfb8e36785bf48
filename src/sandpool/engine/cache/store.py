"""What the API holds, as far as we know: small views of the objects of one type, by name and by index.

**Views, not objects.** An object is projected to a view when it arrives and then dropped. A view holds what our code
reads and nothing else, must be immutable and comparable, and must not keep parts of the object alive (texts that repeat
from object to object are best interned). Two versions of an object with equal views are the same to us: the old view
stays and nobody is told.

**Handlers** are called with the views before and after, synchronously, once the cache and its indexes are up to date. A
handler with ``on_change_of`` is called only if that part of the view has changed, so a controller is not enqueued by
the status that it writes itself. An object that was replaced by another of the same name is first gone, then new.

**One order.** Versions of one type grow with every change, in the order of the watch. A version that is not newer than
the one we have changes nothing, whoever brings it.

**Own writes.** ``record_write`` takes in the response of a write at once, so the writer's next read includes it.
Handlers see everything that changed in that version: another writer's change may be part of the response, and its watch
event will be old by then, like the event of our own write. Two traps:

* The answer may arrive after the event of the object's *deletion*. Everything up to the newest version the API told us
  of is known, so an answer no newer than that about an object we do not have is about one that is gone.
* An own deletion is put in at once, too, but the answer of a deletion has no version to compare with. Until its event
  arrives, events that carry the object's UID are from before.

**Lists.** What a list does not contain is gone, except what is newer than the list: that was written after it was made.
A list older than what we have already seen means that the history of the API began anew, from a backup for example;
then no version we have means anything, and the list is all there is.

An update costs O(1), whatever the number of objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import Generic, NamedTuple, TypeVar

from sandpool.api.resource import Object
from sandpool.engine.cache.index import Index
from sandpool.kube.mutation_detector import detector

_log = logging.getLogger(__name__)

V = TypeVar("V")


class Key(NamedTuple):
    """Names one object of a type; the namespace of what has none is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, object: Object) -> Key:
        metadata = object["metadata"]
        return cls(intern(metadata.get("namespace") or ""), metadata["name"])


# Called with the key and the views before and after: None before means new, None after means gone.
Handler = Callable[[Key, V | None, V | None], None]


@dataclass(slots=True)
class _Entry(Generic[V]):
    view: V
    version: int  # of the object the view was made of, or of a later one with an equal view
    uid: str


@dataclass(slots=True, frozen=True)
class _Subscription(Generic[V]):
    handler: Handler[V]
    on_change_of: Callable[[V], object] | None


class Cache(Generic[V]):
    """The objects of one type. ``name`` is what log lines call them."""

    def __init__(self, project: Callable[[Object], V], *, name: str = "objects") -> None:
        self.project = project
        self.name = name
        self._entries: dict[Key, _Entry[V]] = {}
        # Each contains exactly the views of _entries whenever somebody else runs.
        self._indexes: dict[str, Index[V]] = {}
        self._subscriptions: list[_Subscription[V]] = []
        # The newest version the API told us of, by a list, an event or a bookmark; own writes do not count. Whatever
        # happened up to here is in the cache.
        self._seen = 0
        # Objects we deleted that the API has not told us are gone, by UID. None of them is in _entries.
        self._deleted: dict[str, Key] = {}
        # The newest version we knew of the last of them under each key, and its UID. Nothing older is taken in under
        # that key: a list that was made before may still show an earlier object of the same name.
        self._floors: dict[Key, tuple[int, str]] = {}
        # In tests only: proves that no consumer changes a view.
        self._detector = detector(name)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> V | None:
        entry = self._entries.get(key)
        return entry.view if entry is not None else None

    def version(self, key: Key) -> str | None:
        """The newest resourceVersion known of an object, to be given with a write that must not miss a change."""
        entry = self._entries.get(key)
        return str(entry.version) if entry is not None else None

    def by_index(self, index: str, value: Hashable) -> tuple[V, ...]:
        """The views an index finds by a value."""
        return self._indexes[index].get(value)

    def count(self, index: str, value: Hashable) -> int:
        return self._indexes[index].count(value)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[V]:
        return (entry.view for entry in self._entries.values())

    # -- setting up ------------------------------------------------------------------------------------------------

    def add_index(self, name: str, values: Callable[[V], Iterable[Hashable]]) -> None:
        if name in self._indexes:
            raise ValueError(f"{self.name} already have an index {name!r}")
        index = self._indexes[name] = Index(values)
        for key, entry in self._entries.items():
            index.move(key, (), index.of(entry.view), entry.view)

    def subscribe(self, handler: Handler[V], *, on_change_of: Callable[[V], object] | None = None) -> None:
        """Call ``handler`` for every object in the cache now, and then whenever ``on_change_of(view)`` changes.

        Without ``on_change_of`` any change of the view counts. A handler must not block, and it is not called again for
        an event on which it failed.
        """
        subscription = _Subscription(handler, on_change_of)
        self._subscriptions.append(subscription)
        for key, entry in list(self._entries.items()):
            self._tell(subscription, key, None, entry.view)

    # -- what the API tells ----------------------------------------------------------------------------------------

    def observe(self, object: Object) -> None:
        """An object has been added or modified."""
        version = version_of(object)
        self._seen = max(self._seen, version)
        self._take(Key.of(object), object, version)

    def observe_deletion(self, object: Object) -> None:
        version = version_of(object)
        self._seen = max(self._seen, version)
        uid = _uid(object)
        if uid in self._deleted:
            self._forget_deletion(uid)
            return
        key = Key.of(object)
        entry = self._entries.get(key)
        # Else the object of that name is a newer one, which we created ourselves.
        if entry is not None and (entry.uid == uid or entry.version <= version):
            self._drop(key, entry)

    def observe_bookmark(self, version: int) -> None:
        """There is no news up to this version."""
        self._seen = max(self._seen, version)

    def begin_list(self, version: int) -> Listing[V]:
        """Begin to take in a list that was made at a version."""
        if version < self._seen:
            _log.warning("the history of %s began anew: listed at version %d after %d", self.name, version, self._seen)
            self._seen = 0
            self._deleted.clear()
            self._floors.clear()
            for entry in self._entries.values():
                entry.version = 0
        return Listing(self, version)

    # -- what we do ourselves --------------------------------------------------------------------------------------

    def record_write(self, object: Object) -> None:
        """Take in the answer of an own create or patch, before anybody looks at the object again."""
        key, version = Key.of(object), version_of(object)
        if key in self._entries or version > self._seen:
            self._take(key, object, version)

    def record_deletion(self, key: Key, uid: str, answer: Object | None = None) -> None:
        """Take in the ``answer`` of an own delete: the object while something keeps it, a Status once it is gone.
        None stands for a 404, which says the same."""
        if answer is not None and answer.get("kind") != "Status":
            self.record_write(answer)
            return
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:  # else its event was faster
            self._deleted[uid] = key
            self._floors[key] = (entry.version, uid)
            self._drop(key, entry)

    # -- how it is done --------------------------------------------------------------------------------------------

    def _take(self, key: Key, object: Object, version: int) -> None:
        uid = _uid(object)
        entry = self._entries.get(key)
        if uid in self._deleted or (entry is not None and version <= entry.version):
            return
        if key in self._floors and version < self._floors[key][0]:
            return
        view = self.project(object)
        if entry is not None and entry.uid != uid:
            self._drop(key, entry)
            entry = None
        if entry is None:
            self._file(key, None, view)
            self._entries[key] = _Entry(view, version, uid)
            old = None
        elif entry.view == view:
            entry.version = version
            return
        else:
            old = entry.view
            self._file(key, old, view)
            entry.view, entry.version = view, version
        if self._detector is not None:
            self._detector.remember(key, view)
        self._tell_all(key, old, view)

    def _forget_deletion(self, uid: str) -> None:
        key = self._deleted.pop(uid, None)
        if key is not None and self._floors.get(key, (0, ""))[1] == uid:
            del self._floors[key]

    def _drop(self, key: Key, entry: _Entry[V]) -> None:
        self._file(key, entry.view, None)
        del self._entries[key]
        self._tell_all(key, entry.view, None)
        if self._detector is not None:
            self._detector.forget(key)

    def _file(self, key: Key, old: V | None, new: V | None) -> None:
        """Bring all indexes up to date, or none: a view that one of them cannot handle is not filed at all."""
        moves = [(index, index.of(old), index.of(new)) for index in self._indexes.values()]
        for index, before, after in moves:
            index.move(key, before, after, new)

    def _tell_all(self, key: Key, old: V | None, new: V | None) -> None:
        for subscription in self._subscriptions:
            self._tell(subscription, key, old, new)

    def _tell(self, subscription: _Subscription[V], key: Key, old: V | None, new: V | None) -> None:
        select = subscription.on_change_of
        try:
            if select is None or old is None or new is None or select(old) != select(new):
                subscription.handler(key, old, new)
        except Exception:  # noqa: BLE001 - others must hear of the change all the same, and the cache must go on
            _log.exception("a handler failed on a change of %s %s", self.name, key)


class Listing(Generic[V]):
    """A list that is being taken in, page by page. Objects appear at once, the missing ones go at the end."""

    def __init__(self, cache: Cache[V], version: int) -> None:
        self._cache = cache
        self._version = version
        self._listed: set[Key] = set()
        # Objects we deleted before, as far as they were not listed: the API knows, no event about them will come.
        self._gone_for_good = set(cache._deleted)

    def add(self, object: Object) -> None:
        key = Key.of(object)
        self._listed.add(key)
        self._gone_for_good.discard(_uid(object))
        self._cache._take(key, object, version_of(object))

    def finish(self) -> None:
        cache = self._cache
        gone = [
            (key, entry)
            for key, entry in cache._entries.items()
            if key not in self._listed and entry.version <= self._version
        ]
        for key, entry in gone:
            cache._drop(key, entry)
        for uid in self._gone_for_good:
            cache._forget_deletion(uid)
        cache._seen = max(cache._seen, self._version)


def version_of(object: Object) -> int:
    """The resourceVersion of an object or list. Those of one type are numbers in the order of the changes."""
    return int(object["metadata"]["resourceVersion"])


def _uid(object: Object) -> str:
    uid: str = object["metadata"].get("uid") or ""
    return uid
