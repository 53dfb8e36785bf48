"""What every verb needs: the store, the clock, the neighbours of an object, and the result they all return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.errors import InsufficientStorage, InternalError, not_found
from sandpool.server.resources import Resource
from sandpool.server.store.entry import Entry
from sandpool.server.store.journal import DiskFull, JournalFailed
from sandpool.server.store.store import Store, Write


@dataclass(slots=True)
class Outcome:
    """What a verb answers with. ``encoded`` is there when the bytes are at hand anyway."""

    object: Object | None
    encoded: bytes | None = None
    created: bool = False
    warnings: list[str] = field(default_factory=list)


class Neighbours:
    """The rest of the cluster as the rules of one object may see it: the newest accepted states."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, group_resource: str, namespace: str | None, name: str) -> Object | None:
        entry = self._store.head(group_resource, (namespace or "", name))
        return entry.decode() if entry is not None else None

    def objects(self, group_resource: str) -> Iterator[Object]:
        for entry in self._store.scan(group_resource):
            yield entry.decode()


class Context:
    def __init__(self, store: Store, clock: Clock, random: Random) -> None:
        self.store = store
        self.clock = clock
        self.random = random
        self.neighbours = Neighbours(store)
        self._now = (clock.now(), "")

    def now(self) -> str:
        """The time as it is written into objects; the same string for a whole second."""
        moment = self.clock.now().replace(microsecond=0)
        if moment != self._now[0]:
            self._now = (moment, timestamp(moment))
        return self._now[1]

    def current(self, resource: Resource, namespace: str, name: str) -> Object:
        """The newest accepted state, which a write builds on."""
        entry = self.store.head(resource.storage, (namespace, name))
        if entry is None:
            raise not_found(resource.type, name)
        return self.read(resource, entry)

    @staticmethod
    def read(resource: Resource, entry: Entry) -> Object:
        obj = entry.decode()
        return resource.from_stored(obj) if resource.from_stored is not None else obj

    async def put(self, resource: Resource, obj: Object) -> Outcome:
        """Store a new state and wait until it is durable."""
        stored = resource.to_stored(obj) if resource.to_stored is not None else obj
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        return await self._settle(resource, self.store.put(resource.storage, key, stored))

    async def remove(self, resource: Resource, final: Object) -> Outcome:
        stored = resource.to_stored(final) if resource.to_stored is not None else final
        metadata = final["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        return await self._settle(resource, self.store.remove(resource.storage, key, stored))

    async def _settle(self, resource: Resource, write: Write) -> Outcome:
        try:
            await write.durable
        except DiskFull as error:
            raise InsufficientStorage(
                "the disk that holds the data directory is full; nothing was written. Free some space and try again"
            ) from error
        except JournalFailed as error:
            raise InternalError(f"the write could not be made durable and was undone: {error}") from error
        if resource.from_stored is not None:
            return Outcome(resource.from_stored(write.object))
        return Outcome(write.object, write.change.entry.encoded)
