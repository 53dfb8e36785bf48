"""The real API server on an in-memory journal, cheap enough to start one per simulation.

Every server starts with the same namespaces, roles and CustomResourceDefinitions. One server writes them once per
Python process; all others start with a copy. Parsing the schemas and compiling the validators takes longer than a whole
simulation, so servers share the compiled resources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

import orjson

from sandpool.api.kinds import SANDPOOL
from sandpool.api.resource import Key, Object
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.server.api_server import ApiServer
from sandpool.server.resources import Resource, ResourceTable
from sandpool.server.store.entry import Change, Entry
from sandpool.server.store.journal import Row
from sandpool.server.store.store import Store, Write
from sandpool.testing.simulation.event_loop import LoopClock, SimulationLoop
from sandpool.testing.simulation.journal import MemoryJournal

#: The writer on whose behalf the current task sends requests.
WRITER: ContextVar[str] = ContextVar("writer", default="server")

# Attributes that a resource computes lazily, from its schema alone.
_COMPILED = ("shape", "admit", "typed", "fill")

#: Called with a resource name, a committed change and the writer of the change.
WriteObserver = Callable[[str, Change, str], None]


class AttributedStore(Store):
    """A store that records the writer of every change."""

    def __init__(self, journal: MemoryJournal, decoded: dict[bytes, Object]) -> None:
        super().__init__(journal)
        for resource in self.resources():
            for entry in self.scan(resource):
                if (known := decoded.get(entry.encoded)) is not None:
                    entry.keep(known)
        self._writers: dict[Change, str] = {}  # of uncommitted changes

    def put(self, resource: str, key: Key, object: Object) -> Write:
        return self._attribute(super().put(resource, key, object))

    def remove(self, resource: str, key: Key, final: Object) -> Write:
        return self._attribute(super().remove(resource, key, final))

    def _attribute(self, write: Write) -> Write:
        self._writers[write.change] = WRITER.get()
        return write

    def add_write_observer(self, observer: WriteObserver) -> None:
        """Call ``observer`` with every change that is committed from now on."""
        self.observe(lambda resource, change: observer(resource, change, self._writers.pop(change, "")))


class ObjectStore(Protocol):
    """The objects of a simulation."""

    def scan(self, resource: str, namespace: str | None = None) -> Iterator[Entry]: ...

    def count(self, resource: str, namespace: str | None = None) -> int: ...

    def add_write_observer(self, observer: WriteObserver) -> None: ...


class _InitialState(NamedTuple):
    rows: tuple[Row, ...]
    revision: int
    decoded: dict[bytes, Object]  # the decoded objects of the rows, by stored bytes
    served: dict[tuple[str, str, str], Resource]
    directory: TemporaryDirectory[str]  # holds the server's key; removed when Python exits


@cache
def _initial_state() -> _InitialState:
    """Start a server once and keep what it wrote and compiled."""
    directory = TemporaryDirectory(prefix="sandpool-simulation-")
    journal = MemoryJournal(lambda: 0.0)
    loop = SimulationLoop(Random(0), disorder=0.0)

    async def make() -> ApiServer:
        clock = LoopClock(loop)
        server = ApiServer(Path(directory.name), clock=clock, rng=Random(0), open_store=lambda _: Store(journal))
        await server.start()
        await _wait_until_served(server.client())
        await clock.sleep(1.0)
        await server.stop()
        return server

    server = loop.run(make())
    served = {_path(resource): resource for resource in server.resources}
    rows = tuple(journal.objects.values())
    decoded = {row.value: orjson.loads(row.value) for row in rows}
    return _InitialState(rows, journal.revision, decoded, served, directory)


def _path(resource: Resource) -> tuple[str, str, str]:
    return resource.type.group, resource.type.version, resource.type.plural


def share_compiled_resources(resources: ResourceTable) -> None:
    """Copy the compiled validators of an earlier server to a new one."""
    served = _initial_state().served
    for resource in resources:
        other = served[_path(resource)]
        for name in _COMPILED:
            resource.__dict__[name] = getattr(other, name)


async def start_server(
    clock: Clock, rng: Random, delay: Callable[[], float], make: Callable[..., ApiServer] = ApiServer
) -> tuple[ApiServer, AttributedStore]:
    """Start a server that ``make`` returns; ``delay`` draws the duration of a commit."""
    initial = _initial_state()
    journal = MemoryJournal(delay, initial.rows, initial.revision)
    stores: list[AttributedStore] = []

    def open_store(_: Path) -> Store:
        stores.append(AttributedStore(journal, initial.decoded))
        return stores[0]

    server = make(Path(initial.directory.name), clock=clock, rng=rng, open_store=open_store)
    await server.start()
    share_compiled_resources(server.resources)
    return server, stores[0]


async def _wait_until_served(client: Client) -> None:
    for type in SANDPOOL:
        while True:
            try:
                await client.list(type)
                break
            except NotFound:
                await asyncio.sleep(0.01)
