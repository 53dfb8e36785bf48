"""Informer cache: small views of the API objects of one type, by key and by index.

**Views, not objects.** The cache projects an object to a view when it arrives and drops the object. A view holds the
fields that our code reads. It must be immutable and comparable, and it must not keep parts of the object alive (intern
strings that repeat from object to object). Two versions of an object with equal views are the same to us: the old view
stays and no handler is called.

**Handlers** are called with the views before and after, synchronously, once the cache and its indexes are up to date. A
handler with ``on_change_of`` is called only if that part of the view has changed, so a controller is not enqueued by
the status that it writes itself. ``on_change_of`` may declare the fields it ``reads``; it is not even computed when
none of them has changed. When an object is replaced by another of the same name, handlers see the deletion of
the old one first and then the new one.

**Order.** Versions of one type grow with every change, in the order of the watch. The cache ignores a version that is
not newer than its own, whether it comes from a watch, a list or a write.

**Own writes.** ``record_write`` takes in the response of a write at once, so the writer's next read includes it.
Handlers see everything that changed in that version: another writer's change may be part of the response, and its watch
event will be old by then, like the event of our own write. Two traps:

* The response may arrive after the watch event of the object's *deletion*. The cache includes everything up to the
  newest version that the API has reported. So a response that is not newer, about an object that is not in the cache,
  is about a deleted object.
* An own deletion takes effect at once too, but its response has no version to compare with. Until the watch event of
  the deletion arrives, events with the UID of the object are older than the deletion.

**Lists.** Objects that are missing in a list are gone, except those that are newer than the list: they were written
after it was made. A list that is older than the newest version seen means that the history of the API was reset, by a
restored backup for example. Then the versions in the cache have no meaning and the list replaces everything.

An update is O(1) in the number of objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from sandpool.api.resource import Key, SharedObject, shared_key
from sandpool.engine.cache.index import Index
from sandpool.kube.shared_objects import detector

_log = logging.getLogger(__name__)

V = TypeVar("V")


F = TypeVar("F", bound=Callable[..., object])


def reads(*fields: str, exactly: bool = False) -> Callable[[F], F]:
    """Declare all fields of a view that a function for ``on_change_of`` or for an index reads.

    ``exactly``: it returns these fields and computes nothing. So it is not called: each change of a field is a change.
    """

    def declare(function: F) -> F:
        function.fields, function.exactly = frozenset(fields), exactly  # type: ignore[attr-defined]
        return function

    return declare


# Called with the key and the views before and after. None before: the object is new. None after: it is gone.
Handler = Callable[[Key, V | None, V | None], None]


@dataclass(slots=True)
class _Entry(Generic[V]):
    view: V
    version: int  # of the object the view was made of, or of a later one with an equal view
    uid: str
    filed: tuple[tuple[Hashable, ...], ...] = ()  # the values under which each index has the view


@dataclass(slots=True, frozen=True)
class _Subscription(Generic[V]):
    handler: Handler[V]
    on_change_of: Callable[[V], object] | None
    fields: frozenset[str]  # the only ones that ``on_change_of`` reads; empty if it does not declare them
    exactly: bool  # ``on_change_of`` returns these fields


#: What identifies one state of an object: its key, its version and its UID.
Stamp = tuple[Key, int, str]


def stamp_of(object: SharedObject) -> Stamp:
    """Raises KeyError, TypeError or ValueError if ``object`` is no state of an object."""
    metadata = object["metadata"]
    key = shared_key(metadata.get("namespace") or "", metadata["name"])
    return key, int(metadata["resourceVersion"]), metadata.get("uid") or ""


_NO_FIELDS: Final = frozenset[str]()


class Cache(Generic[V]):
    """The objects of one type. ``name`` identifies the type in log lines."""

    def __init__(self, project: Callable[[Any], V], *, name: str = "objects") -> None:
        self.project = project
        self.name = name
        self._entries: dict[Key, _Entry[V]] = {}
        # Each contains exactly the views of _entries whenever other code runs.
        self._indexes: dict[str, Index[V]] = {}
        self._subscriptions: list[_Subscription[V]] = []
        # The fields that subscriptions and indexes declare, in one order, and a function that returns all of them at
        # once; None without any. All indexes together read ``_indexed``; None if one of them declares nothing.
        self._fields: tuple[str, ...] = ()
        self._read_fields: Callable[[V], tuple[object, ...]] | None = None
        self._indexed: frozenset[str] | None = _NO_FIELDS
        # The newest version reported by a list, an event or a bookmark; own writes do not count. Everything up to this
        # version is in the cache.
        self._seen = 0
        # Objects we deleted and for which no deletion event has arrived, by UID. None of them is in _entries.
        self._deleted: dict[str, Key] = {}
        # For the last of them under each key: its newest version known and its UID. The cache accepts nothing older
        # under that key, because a list that was made before may still show an earlier object of the same name.
        self._floors: dict[Key, tuple[int, str]] = {}
        # In tests only: proves that no consumer changes a view.
        self._detector = detector(name)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> V | None:
        entry = self._entries.get(key)
        return entry.view if entry is not None else None

    def version(self, key: Key) -> str | None:
        """The newest resourceVersion known of an object, for writes with optimistic locking."""
        entry = self._entries.get(key)
        return str(entry.version) if entry is not None else None

    def by_index(self, index: str, value: Hashable) -> tuple[V, ...]:
        """The views that an index holds under a value."""
        return self._indexes[index].get(value)

    def count(self, index: str, value: Hashable) -> int:
        return self._indexes[index].count(value)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[V]:
        return (entry.view for entry in self._entries.values())

    def items(self) -> Iterator[tuple[Key, V]]:
        return ((key, entry.view) for key, entry in self._entries.items())

    # -- setting up ------------------------------------------------------------------------------------------------

    def add_index(self, name: str, values: Callable[[V], Iterable[Hashable]]) -> None:
        if name in self._indexes:
            raise ValueError(f"{self.name} already have an index {name!r}")
        index = self._indexes[name] = Index(values, getattr(values, "fields", _NO_FIELDS))
        self._compare(index.fields)
        self._indexed = self._indexed | index.fields if self._indexed is not None and index.fields else None
        for key, entry in self._entries.items():
            entry.filed = (*entry.filed, index.of(entry.view))
            index.move(key, (), entry.filed[-1], entry.view)

    def subscribe(self, handler: Handler[V], *, on_change_of: Callable[[V], object] | None = None) -> None:
        """Call ``handler`` for every object in the cache now, and then whenever ``on_change_of(view)`` changes.

        Without ``on_change_of`` any change of the view counts. A handler must not block, and it is not called again for
        an event on which it failed.
        """
        fields, exactly = getattr(on_change_of, "fields", _NO_FIELDS), getattr(on_change_of, "exactly", False)
        subscription = _Subscription(handler, on_change_of, fields, exactly)
        self._subscriptions.append(subscription)
        self._compare(fields)
        for key, entry in list(self._entries.items()):
            self._notify((subscription,), key, None, entry.view, _NO_FIELDS)

    def _compare(self, fields: frozenset[str]) -> None:
        """Compare these fields of the views before and after each change."""
        if fields:
            self._fields = tuple(sorted(fields.union(self._fields)))
            # One name too many, because attrgetter returns no tuple for a single one.
            self._read_fields = attrgetter(*self._fields, self._fields[0])

    # -- events of the API -----------------------------------------------------------------------------------------

    def observe(self, object: SharedObject, stamp: Stamp | None = None) -> None:
        """Take in an ADDED or MODIFIED event. ``stamp`` is that of the object, if it was read before."""
        stamp = stamp or stamp_of(object)
        if stamp[1] > self._seen:
            self._seen = stamp[1]
        self._take(object, stamp)

    def observe_deletion(self, object: SharedObject, stamp: Stamp | None = None) -> None:
        """Take in a DELETED event."""
        key, version, uid = stamp or stamp_of(object)
        if version > self._seen:
            self._seen = version
        if uid in self._deleted:
            self._forget_deletion(uid)
            return
        entry = self._entries.get(key)
        # Otherwise the object of that name is a newer one that we created.
        if entry is not None and (entry.uid == uid or entry.version <= version):
            self._drop(key, entry)

    def observe_bookmark(self, version: int) -> None:
        """Take in a bookmark: there are no other changes up to this version."""
        self._seen = max(self._seen, version)

    def begin_list(self, version: int) -> Listing[V]:
        """Begin to replace the content by a list that was made at ``version``."""
        if version < self._seen:
            _log.warning("the history of %s was reset: listed at version %d after %d", self.name, version, self._seen)
            self._seen = 0
            self._deleted.clear()
            self._floors.clear()
            for entry in self._entries.values():
                entry.version = 0
        return Listing(self, version)

    # -- own writes ------------------------------------------------------------------------------------------------

    def record_write(self, object: SharedObject) -> None:
        """Take in the response of an own create or patch, before the object is read again."""
        stamp = stamp_of(object)
        entry = self._entries.get(stamp[0])
        if stamp[1] > (self._seen if entry is None else entry.version):  # otherwise the watch event was faster
            self._take(object, stamp)

    def record_deletion(self, key: Key, uid: str, response: SharedObject | None = None) -> None:
        """Take in the ``response`` of an own delete: the object while a finalizer keeps it, a Status once it is gone.

        None stands for a 404, which means the same as a Status.
        """
        if response is not None and response.get("kind") != "Status":
            self.record_write(response)
            return
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:  # otherwise the watch event was faster
            self._deleted[uid] = key
            self._floors[key] = (entry.version, uid)
            self._drop(key, entry)

    # -- implementation --------------------------------------------------------------------------------------------

    def _take(self, object: SharedObject, stamp: Stamp) -> None:
        key, version, uid = stamp
        entry = self._entries.get(key)
        if uid in self._deleted or (entry is not None and version <= entry.version):
            return
        if key in self._floors and version < self._floors[key][0]:
            return
        view = self.project(object)
        if entry is not None and entry.uid != uid:
            self._drop(key, entry)
            entry = None
        old: V | None = None
        same: Set[str] = _NO_FIELDS
        if entry is None:
            self._entries[key] = _Entry(view, version, uid, self._file(key, (), view))
        elif entry.view == view:
            entry.version = version
            return
        else:
            old = entry.view
            same = self._same_fields(old, view)
            if self._indexed is None or not self._indexed <= same:
                entry.filed = self._file(key, entry.filed, view)
            else:
                for index, values in zip(self._indexes.values(), entry.filed, strict=True):
                    if values:
                        index.replace(key, values, view)
            entry.view, entry.version = view, version
        if self._detector is not None:
            self._detector.remember(key, view)
        self._notify(self._subscriptions, key, old, view, same)

    def _same_fields(self, old: V, new: V) -> Set[str]:
        """The declared fields in which two views of an object agree."""
        if self._read_fields is None:
            return _NO_FIELDS
        values = zip(self._fields, self._read_fields(old), self._read_fields(new), strict=False)
        return {name for name, before, after in values if before is after or before == after}

    def _forget_deletion(self, uid: str) -> None:
        key = self._deleted.pop(uid, None)
        if key is not None and self._floors.get(key, (0, ""))[1] == uid:
            del self._floors[key]

    def _drop(self, key: Key, entry: _Entry[V]) -> None:
        self._file(key, entry.filed, None)
        del self._entries[key]
        self._notify(self._subscriptions, key, entry.view, None, _NO_FIELDS)
        if self._detector is not None:
            self._detector.forget(key)

    def _file(
        self, key: Key, filed: tuple[tuple[Hashable, ...], ...], new: V | None
    ) -> tuple[tuple[Hashable, ...], ...]:
        """Update all indexes or none: a view that one of them cannot handle is in no index. Returns where it is now."""
        if not self._indexes:
            return ()
        filing = tuple([index.of(new) for index in self._indexes.values()])
        for index, before, after in zip(self._indexes.values(), filed or [()] * len(filing), filing, strict=True):
            if before or after:
                index.move(key, before, after, new)
        return filing

    def _notify(
        self, subscriptions: Sequence[_Subscription[V]], key: Key, old: V | None, new: V | None, same: Set[str]
    ) -> None:
        """Call the handlers that the change concerns. ``same`` are declared fields in which the views agree."""
        for each in subscriptions:
            if each.fields and each.fields <= same:
                continue
            select = each.on_change_of
            try:
                if select is None or each.exactly or old is None or new is None or select(old) != select(new):
                    each.handler(key, old, new)
            except Exception:  # noqa: BLE001 - a failed handler must not keep the change from the others
                _log.exception("a handler failed on a change of %s %s", self.name, key)


class Listing(Generic[V]):
    """A list that replaces the content page by page. Listed objects appear at once, missing ones go at the end."""

    def __init__(self, cache: Cache[V], version: int) -> None:
        self._cache = cache
        self._version = version
        self._listed: set[Key] = set()
        # Objects we deleted and that are not listed: the list proves their end, no event about them will come.
        self._gone_for_good = set(cache._deleted)

    def add(self, object: SharedObject) -> None:
        stamp = stamp_of(object)
        self._listed.add(stamp[0])
        self._gone_for_good.discard(stamp[2])
        self._cache._take(object, stamp)

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


def version_of(object: SharedObject) -> int:
    """The resourceVersion of an object or list as a number. Within one type the numbers grow with every change."""
    return int(object["metadata"]["resourceVersion"])
