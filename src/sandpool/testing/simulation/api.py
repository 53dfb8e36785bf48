"""The real API server on a journal in memory, made so often that it must be cheap to make.

What a server has from the beginning (its namespaces, roles and definitions) is the same for all of them. It is written
once per process, by a server of its own, and the others begin with a copy. A new server would read the schemas of the
definitions again, and compile what checks objects against them, which takes longer than a whole simulation: so what one
server serves, the next one serves as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import orjson

from sandpool.api.kinds import SANDPOOL
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.server.api_server import ApiServer
from sandpool.server.resources import Resource
from sandpool.server.store.entry import Change, Key
from sandpool.server.store.journal import Row
from sandpool.server.store.store import Store, Write
from sandpool.testing.simulation.event_loop import LoopClock, SimulationLoop
from sandpool.testing.simulation.journal import MemoryJournal

#: Who is writing, as far as the code that runs now does so on somebody's behalf.
WRITER: ContextVar[str] = ContextVar("writer", default="server")

# What a resource works out when it is first asked for, from nothing but its schema.
_COMPILED = ("shape", "admit", "typed", "fill")

#: Called with the type of a resource, a change of one that was committed, and who made it.
Witness = Callable[[str, Change, str], None]


class WitnessedStore(Store):
    """A store that knows who wrote what."""

    def __init__(self, journal: MemoryJournal, decoded: dict[bytes, Object]) -> None:
        super().__init__(journal)
        for resource in self.resources():
            for entry in self.scan(resource):
                entry.keep(decoded[entry.encoded])
        self._writers: dict[Change, str] = {}  # of changes that are not committed yet

    def put(self, resource: str, key: Key, object: Object) -> Write:
        return self._by(super().put(resource, key, object))

    def remove(self, resource: str, key: Key, final: Object) -> Write:
        return self._by(super().remove(resource, key, final))

    def _by(self, write: Write) -> Write:
        self._writers[write.change] = WRITER.get()
        return write

    def witness(self, witness: Witness) -> None:
        """Have a function called with every change that is committed from now on."""
        self.observe(lambda resource, change: witness(resource, change, self._writers.pop(change, "")))


class _Beginning(NamedTuple):
    rows: tuple[Row, ...]
    revision: int
    decoded: dict[bytes, Object]  # of the rows, by what is stored
    served: dict[tuple[str, str, str], Resource]
    directory: TemporaryDirectory[str]  # with the server's key; removed with the process


@cache
def _beginning() -> _Beginning:
    """What a server has from the beginning."""
    directory = TemporaryDirectory(prefix="sandpool-simulation-")
    journal = MemoryJournal(lambda: 0.0)
    loop = SimulationLoop(Random(0), disorder=0.0)

    async def make() -> ApiServer:
        clock = LoopClock(loop)
        server = ApiServer(Path(directory.name), clock=clock, random=Random(0), open_store=lambda _: Store(journal))
        await server.start()
        await _serves(server.client())
        await clock.sleep(1.0)
        await server.stop()
        return server

    server = loop.run(make())
    served = {_path(resource): resource for resource in server.resources}
    rows = tuple(journal.objects.values())
    decoded = {row.value: orjson.loads(row.value) for row in rows}
    return _Beginning(rows, journal.revision, decoded, served, directory)


def _path(resource: Resource) -> tuple[str, str, str]:
    return resource.type.group, resource.type.version, resource.type.plural


def _share(server: ApiServer, served: dict[tuple[str, str, str], Resource]) -> None:
    """Give a server what another one has worked out about the same resources, and the other way round."""
    for resource in server.resources:
        other = served[_path(resource)]
        for name in _COMPILED:
            resource.__dict__[name] = getattr(other, name)


async def start_server(clock: Clock, random: Random, delay: Callable[[], float]) -> tuple[ApiServer, WitnessedStore]:
    """A server that serves; ``delay`` draws how long a commit takes."""
    beginning = _beginning()
    journal = MemoryJournal(delay, beginning.rows, beginning.revision)
    stores: list[WitnessedStore] = []

    def open_store(_: Path) -> Store:
        stores.append(WitnessedStore(journal, beginning.decoded))
        return stores[0]

    server = ApiServer(Path(beginning.directory.name), clock=clock, random=random, open_store=open_store)
    await server.start()
    _share(server, beginning.served)
    return server, stores[0]


async def _serves(client: Client) -> None:
    for type in SANDPOOL:
        while True:
            try:
                await client.list(type)
                break
            except NotFound:
                await asyncio.sleep(0.01)
