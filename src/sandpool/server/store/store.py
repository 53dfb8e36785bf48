"""Objects, revisions and watches over a durable journal.

The store has two views of its objects:

* *committed*: the state on disk. Readers and watches see only this, so no client acts on a state that a crash would
  take back.
* *head*: committed plus accepted writes that are not yet synced. Only writers read it, because a write must build on
  the newest state of its object or fail with a conflict.

A write is accepted synchronously: nothing else runs between reading the head and accepting the new state, so there are
no locks and no lost updates. It is then pipelined: while one batch is being synced, the next one fills. When a batch is
on disk, its changes become visible in revision order, and then its writers get their responses. If a batch fails, it
and all writes accepted on top of it are refused and the head falls back to the committed state.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from sandpool.api.resource import Key, Object
from sandpool.kube.errors import TooLarge
from sandpool.server.store.entry import Change, Entry, encode
from sandpool.server.store.history import Compacted, History
from sandpool.server.store.journal import Batch, Log, Row
from sandpool.server.store.object_table import ObjectTable, order
from sandpool.server.store.watch import Subscription, WatchHub

# The newest states keep their decoded objects: in-process watches read a new state at once, and its writer usually
# writes it again soon.
_DECODED_STATES = 1024
# The decoded objects are kept together with their bytes, which many small writes to large objects would pile up.
_DECODED_STATES_BYTES = 64 << 20
#: Bytes of an encoded object: kube-apiserver's limit of a request. Without it, patches that copy what is there, or
#: many that each add something, grow an object without bound.
MAX_OBJECT = 3 * 1024 * 1024


@dataclass(slots=True)
class ResourceStore:
    """One resource in the store: its committed objects, their history and its watches."""

    table: ObjectTable
    history: History
    hub: WatchHub


@dataclass(slots=True)
class Write:
    """An accepted write: the new object, and a future that resolves when it is on disk."""

    resource: str
    change: Change
    entry: Entry  # of the change, which may be released before the writer has its response
    object: Object
    durable: asyncio.Future[None]


class Store:
    def __init__(
        self,
        journal: Log,
        *,
        max_changes: int = 16_384,
        max_bytes: int = 64 << 20,
        max_history_bytes: int = 256 << 20,
    ) -> None:
        """``max_changes`` and ``max_bytes`` bound the history of one resource, ``max_history_bytes`` that of all."""
        self._journal = journal
        self._max_changes = max_changes
        self._max_bytes = max_bytes
        self._max_history_bytes = max_history_bytes
        self._history_bytes = 0
        #: Bytes of all states that were replaced or removed since the start. A response that holds states since an
        #: earlier moment keeps at most the difference in memory.
        self.superseded_bytes = 0
        self._resource_stores: dict[str, ResourceStore] = {}
        self._pending: dict[tuple[str, Key], Change] = {}  # the newest accepted, uncommitted change of each object
        self._filling: list[Write] = []  # accepted, waiting for the journal
        self._syncing: list[Write] = []  # handed to the journal
        # Waiters for writes of other tasks. They do not share ``Write.durable``, which is cancelled with its task.
        self._waiting: dict[Change, list[asyncio.Future[None]]] = {}
        self._decoded: deque[Entry] = deque()  # entries that keep their decoded objects, oldest first
        self._decoded_bytes = 0  # of their encoded forms
        self._observers: list[Callable[[str, Change], None]] = []
        self._closed = False
        self.revision = journal.revision  # newest committed
        self.written = journal.written  # the time of the last commit before it was opened; 0 if unknown
        self._head_revision = journal.revision
        self._next_row = 1
        self._rows = 0  # objects at head
        self._load()

    def _load(self) -> None:
        # Loading creates many objects and no garbage; collections would only cost time.
        enabled = gc.isenabled()
        gc.disable()
        try:
            for row in self._journal.load():
                entry = Entry.stored(Key(row.namespace, row.name), row.revision, row.id, row.value)
                self.resource_store(row.resource).table.put(entry)
                self._next_row = max(self._next_row, row.id + 1)
                self._rows += 1
        finally:
            if enabled:
                gc.enable()
        # Loaded objects stay: exclude them from garbage collection.
        gc.freeze()

    # -- reading ---------------------------------------------------------------------------------------------------

    def resource_store(self, resource: str) -> ResourceStore:
        resource_store = self._resource_stores.get(resource)
        if resource_store is None:
            history = History(self.revision, max_changes=self._max_changes, max_bytes=self._max_bytes)
            resource_store = self._resource_stores[resource] = ResourceStore(ObjectTable(), history, WatchHub())
        return resource_store

    def resources(self) -> list[str]:
        """Every resource that has, or had, an object."""
        return list(self._resource_stores)

    def get(self, resource: str, key: Key) -> Entry | None:
        resource_store = self._resource_stores.get(resource)
        return resource_store.table.get(key) if resource_store is not None else None

    def head(self, resource: str, key: Key) -> Entry | None:
        """The newest accepted state, for writers."""
        pending = self._pending.get((resource, key))
        if pending is None:
            return self.get(resource, key)
        return None if pending.type == "DELETED" else pending.entry

    def scan(
        self, resource: str, namespace: str | None = None, *, after: Key | None = None, revision: int | None = None
    ) -> Iterator[Entry]:
        """Committed objects in order, now or at an earlier revision (raises ``Compacted`` if that is too old). The
        iteration must finish before control returns to the event loop."""
        resource_store = self.resource_store(resource)
        if revision is None or revision >= self.revision:
            return resource_store.table.scan(namespace, after)
        return self._scan_past(resource_store, namespace, after, resource_store.history.undo(revision))

    @staticmethod
    def _scan_past(
        resource_store: ResourceStore, namespace: str | None, after: Key | None, then: dict[Key, Entry | None]
    ) -> Iterator[Entry]:
        start = order(after) if after is not None else ""
        changed = sorted(
            (key for key in then if (namespace is None or key[0] == namespace) and order(key) > start), key=order
        )
        position = 0
        for entry in resource_store.table.scan(namespace, after):
            while position < len(changed) and order(changed[position]) < order(entry.key):
                past = then[changed[position]]
                position += 1
                if past is not None:
                    yield past
            if entry.key not in then:
                yield entry
        for key in islice(changed, position, None):
            past = then[key]
            if past is not None:
                yield past

    def count(self, resource: str, namespace: str | None = None) -> int:
        return self.resource_store(resource).table.count(namespace)

    def compact(self, resource: str) -> None:
        """Drop the history of a resource; watches and lists from earlier revisions must start over."""
        history = self.resource_store(resource).history
        self._history_bytes -= history.bytes
        history.compact(self.revision)
        self._history_bytes += history.bytes

    def watch(
        self, resource: str, namespace: str | None = None, name: str | None = None, *, since: int | None = None
    ) -> Subscription:
        """Subscribe to changes after a revision (default: now). Raises ``Compacted`` if the history is too short."""
        resource_store = self.resource_store(resource)
        backlog: list[Change] = []
        if since is not None and since < self.revision:
            backlog = [
                change
                for change in resource_store.history.since(since)
                if (namespace is None or change.entry.key[0] == namespace)
                and (name is None or change.entry.key[1] == name)
            ]
        return resource_store.hub.join(namespace, name, backlog)

    def observe(self, observer: Callable[[str, Change], None]) -> None:
        """Call a function with (resource, change) for every committed change, before writers get their responses."""
        self._observers.append(observer)

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, resource: str, key: Key, object: Object) -> Write:
        """Accept a new state of an object and assign its resourceVersion. Raises ``TooLarge``."""
        previous = self.head(resource, key)
        revision = self._head_revision + 1
        object = {**object, "metadata": {**object["metadata"], "resourceVersion": str(revision)}}
        encoded = encode(object)
        # An object that is too large already can still be marked for deletion.
        if len(encoded) > MAX_OBJECT and "deletionTimestamp" not in object["metadata"]:
            raise TooLarge(f"Request entity too large: limit is {MAX_OBJECT}")
        if previous is None:
            row = self._next_row
            self._next_row += 1
            self._rows += 1
        else:
            row = previous.row
        entry = Entry.of(key, revision, row, object, encoded)
        change = Change("ADDED" if previous is None else "MODIFIED", entry, previous)
        return self._accept(resource, change, object)

    async def fill(self, objects: Iterable[tuple[str, Key, Object]], revision: int) -> None:
        """Put objects into an empty store, all in one commit. Their revisions are above ``revision``, and watches from
        earlier ones must start over."""
        if self._head_revision:
            raise RuntimeError("the store is not empty")
        self._head_revision = revision
        # Nothing else runs meanwhile, so they are in one batch.
        writes = [self.put(resource, key, object) for resource, key, object in objects]
        if not writes:
            self._head_revision = self.revision
        for write in writes:
            await write.durable
        for resource in self.resources():
            self.compact(resource)

    def ensure_revision(self) -> None:
        """Give a store that was never written the revision 1. A list must not have the version "0": a watch from there
        begins with the objects of that moment, and misses what was deleted since the list."""
        if not self._head_revision:
            self.revision = self._head_revision = 1

    def expire_watches(self) -> None:
        """End all watches with the error that makes a client list again."""
        for resource_store in self._resource_stores.values():
            resource_store.hub.close(expired=True)

    def remove(self, resource: str, key: Key, final: Object) -> Write:
        """Accept the removal of an object; ``final`` is its last state, as watches will see it."""
        previous = self.head(resource, key)
        if previous is None:
            raise KeyError(key)
        revision = self._head_revision + 1
        final = {**final, "metadata": {**final["metadata"], "resourceVersion": str(revision)}}
        entry = Entry.of(key, revision, previous.row, final, encode(final))
        self._rows -= 1
        return self._accept(resource, Change("DELETED", entry, previous), final)

    def _accept(self, resource: str, change: Change, object: Object) -> Write:
        if self._closed:
            raise RuntimeError("the store is closed")
        self._head_revision = change.revision
        entry = change.entry
        entry.keep(object)
        self._decoded.append(entry)
        self._decoded_bytes += change.size
        while len(self._decoded) > _DECODED_STATES or self._decoded_bytes > _DECODED_STATES_BYTES:
            oldest = self._decoded.popleft()
            self._decoded_bytes -= len(oldest.encoded)
            oldest.forget()
        self._pending[resource, entry.key] = change
        loop = asyncio.get_running_loop()
        if not self._filling and not self._syncing:
            # Tasks that are ready now add their writes before the first sync starts.
            loop.call_soon(self._sync)
        write = Write(resource, change, entry, object, loop.create_future())
        self._filling.append(write)
        return write

    async def settled(self, resource: str, key: Key) -> None:
        """Wait until the newest accepted state of an object is on disk. Raises the error of a failed commit."""
        pending = self._pending.get((resource, key))
        if pending is not None:
            settled = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(pending, []).append(settled)
            await settled

    def _sync(self) -> None:
        if self._syncing or not self._filling:
            return
        self._syncing, self._filling = self._filling, []
        batch = Batch(revision=self._syncing[-1].change.revision, rows=self._rows)
        for accepted in self._syncing:
            entry = accepted.change.entry
            if accepted.change.type == "DELETED":
                batch.remove(entry.row)
            else:
                batch.add(Row(entry.row, accepted.resource, entry.key[0], entry.key[1], entry.revision, entry.encoded))
        loop = asyncio.get_running_loop()
        self._journal.commit(batch, lambda error: loop.call_soon_threadsafe(self._synced, error))

    def _synced(self, error: Exception | None) -> None:
        synced, self._syncing = self._syncing, []
        if error is None:
            for accepted in synced:
                self._publish(accepted)
            for accepted in synced:
                if not accepted.durable.done():
                    accepted.durable.set_result(None)
                for settled in self._waiting.pop(accepted.change, ()) if self._waiting else ():
                    if not settled.done():
                        settled.set_result(None)
        else:
            self._refuse(synced, error)
        self._sync()

    def _publish(self, accepted: Write) -> None:
        change, resource_store = accepted.change, self.resource_store(accepted.resource)
        entry = change.entry
        if change.type == "DELETED":
            resource_store.table.remove(entry.key)
        else:
            resource_store.table.put(entry)
        self.revision = change.revision
        place = (accepted.resource, entry.key)
        if self._pending.get(place) is change:
            del self._pending[place]
        if change.previous is not None:
            self.superseded_bytes += len(change.previous.encoded)
        self._remember(resource_store.history, change)
        resource_store.hub.publish(change)
        for observer in self._observers:
            observer(accepted.resource, change)

    def _remember(self, history: History, change: Change) -> None:
        before = history.bytes
        history.append(change)
        self._history_bytes += history.bytes - before
        while self._history_bytes > self._max_history_bytes:
            largest = max((each.history for each in self._resource_stores.values()), key=lambda each: each.bytes)
            if len(largest) < 2:
                return
            before = largest.bytes
            largest.release_oldest()
            self._history_bytes -= before - largest.bytes

    def _refuse(self, synced: list[Write], error: Exception) -> None:
        """Refuse a failed batch and all writes accepted since, which may build on it."""
        refused = synced + self._filling
        self._filling = []
        self._pending.clear()
        self._head_revision = self.revision
        self._rows = self._journal.rows
        for accepted in refused:
            for settled in self._waiters_of(accepted):
                settled.set_exception(error)

    def _waiters_of(self, accepted: Write) -> list[asyncio.Future[None]]:
        """The unresolved futures that wait for a write."""
        waiting = [accepted.durable, *self._waiting.pop(accepted.change, ())]
        return [settled for settled in waiting if not settled.done()]

    # -- closing ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish accepted writes, end all watches and release the data directory."""
        if self._closed:
            return
        self._closed = True
        waiting = [a.durable for a in (*self._syncing, *self._filling)]
        waiting += [settled for group in self._waiting.values() for settled in group]
        if waiting:
            await asyncio.wait(waiting)
        for resource_store in self._resource_stores.values():
            resource_store.hub.close()
        await asyncio.to_thread(self._journal.close)


__all__ = ["Change", "Compacted", "Entry", "Key", "ResourceStore", "Store", "Subscription", "Write"]
