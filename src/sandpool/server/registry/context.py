"""Dependencies of all verbs (store, clock, other objects) and the result that they return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from sandpool.api.kinds import NAMESPACE
from sandpool.api.resource import Key, Object, shared_key
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.errors import InsufficientStorage, InternalError, not_found
from sandpool.server.controllers.namespaces import check_create
from sandpool.server.resources import Resource
from sandpool.server.store.entry import Entry
from sandpool.server.store.journal import DiskFull, JournalFailed
from sandpool.server.store.store import Store, Write


@dataclass(slots=True)
class Outcome:
    """The result of a verb. ``encoded`` is set where the bytes exist anyway."""

    object: Object | None
    encoded: bytes | None = None
    created: bool = False
    warnings: list[str] = field(default_factory=list)


class Neighbours:
    """Other objects, for the rules of a kind: their newest accepted states."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, group_resource: str, namespace: str | None, name: str) -> Object | None:
        entry = self._store.head(group_resource, shared_key(namespace or "", name))
        return entry.decode() if entry is not None else None

    def objects(self, group_resource: str) -> Iterator[Object]:
        for entry in self._store.scan(group_resource):
            yield entry.decode()


def filled(resource: Resource, entry: Entry) -> Entry:
    """Apply the defaults of the current schema, which may have changed since the object was stored."""
    if entry.filled is not resource.fill and resource.fill is not None and resource.from_stored is None:
        obj = entry.decode()
        new = resource.fill(obj)
        if new is not obj:
            entry.replace(new)
        entry.filled = resource.fill
    return entry


def key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return shared_key(metadata.get("namespace", ""), metadata["name"])


class RegistryContext:
    offloaded = False  # whether verbs run in a thread and must rejoin the event loop before they write

    def __init__(
        self, store: Store, clock: Clock, rng: Random, find_namespace: Callable[[str], Object | None] | None = None
    ) -> None:
        """``find_namespace`` returns a namespace of another API; by default namespaces are in the store, too."""
        self.store = store
        self.clock = clock
        self.rng = rng
        self.find_namespace = find_namespace
        self.neighbours = Neighbours(store)
        moment = clock.now().replace(microsecond=0)
        self._now = (moment, timestamp(moment))

    def now(self) -> str:
        """The current time as a timestamp for objects; cached for a second."""
        moment = self.clock.now().replace(microsecond=0)
        if moment != self._now[0]:
            self._now = (moment, timestamp(moment))
        return self._now[1]

    def check_namespace(self, resource: Resource, metadata: Object) -> None:
        """Refuse a create in a namespace that does not exist or is terminating."""
        name = metadata.get("namespace", "")
        if self.find_namespace is not None:
            check_create(self.find_namespace(name), name, resource.type, metadata.get("name", ""))
            return
        entry = self.store.head(NAMESPACE.group_resource, shared_key("", name))
        # Searching the bytes avoids decoding: an active namespace does not contain this word.
        if entry is None or b'"Terminating"' in entry.encoded:
            found = entry.decode() if entry is not None else None
            check_create(found, name, resource.type, metadata.get("name", ""))

    def current(self, resource: Resource, namespace: str, name: str) -> Object:
        """The newest accepted state, on which a write builds."""
        entry = self.store.head(resource.storage, shared_key(namespace, name))
        if entry is None:
            raise not_found(resource.type, name)
        return self.read(resource, entry)

    def is_current(self, resource: Resource, obj: Object) -> bool:
        """Whether this is the newest accepted state of the object."""
        entry = self.store.head(resource.storage, key_of(obj))
        return entry is not None and str(entry.revision) == obj["metadata"]["resourceVersion"]

    @staticmethod
    def read(resource: Resource, entry: Entry) -> Object:
        obj = filled(resource, entry).decode()
        if resource.from_stored is None:
            return obj
        obj = resource.from_stored(obj)
        # Another version may know fewer fields, or have other defaults.
        return resource.admit(obj).object if resource.custom else obj

    def accept(self, resource: Resource, obj: Object) -> Write:
        """Pass a new state to the store. It begins with kind and apiVersion, so that lists can cut them off."""
        stored = resource.to_stored(obj) if resource.to_stored is not None else obj
        if next(iter(stored)) != "kind":
            stored = {"kind": stored["kind"], "apiVersion": stored["apiVersion"], **stored}
        write = self.store.put(resource.storage, key_of(obj), stored)
        write.entry.filled = resource.fill
        return write

    async def put(self, resource: Resource, obj: Object) -> Outcome:
        """Store a new state and wait until it is durable."""
        write = self.accept(resource, obj)
        await _durable(write.durable)
        return self.outcome(resource, write)

    def accept_removal(self, resource: Resource, final: Object) -> Write:
        """Pass the removal of an object to the store; ``final`` is its last state."""
        stored = resource.to_stored(final) if resource.to_stored is not None else final
        return self.store.remove(resource.storage, key_of(final), stored)

    async def remove(self, resource: Resource, final: Object) -> Outcome:
        """Remove an object and wait until the removal is durable."""
        write = self.accept_removal(resource, final)
        await _durable(write.durable)
        return self.outcome(resource, write)

    async def settle(self, resource: Resource, key: Key) -> None:
        """Wait until the newest accepted state of an object is durable. For responses that write nothing but depend on
        that state: readers see it only then."""
        await _durable(self.store.settled(resource.storage, key))

    async def durable(self, resource: Resource, write: Write) -> Outcome:
        """Wait until an accepted write is on disk."""
        await _durable(write.durable)
        return self.outcome(resource, write)

    @staticmethod
    def outcome(resource: Resource, write: Write) -> Outcome:
        if resource.from_stored is not None:
            return Outcome(resource.from_stored(write.object))
        return Outcome(write.object, write.entry.encoded)


async def _durable(written: Awaitable[None]) -> None:
    """Wait for the disk, and map its errors to API errors."""
    try:
        await written
    except DiskFull as error:
        raise InsufficientStorage(
            "the disk that holds the data directory is full; nothing was written. Free some space and try again"
        ) from error
    except JournalFailed as error:
        raise InternalError(f"the write could not be made durable and was undone: {error}") from error
