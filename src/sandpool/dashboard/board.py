"""The board: rows of all objects, kept up to date by one watch for each kind, and told to all who look.

A subscriber gets the whole board once and then only the keys that changed, collected over a moment: a burst of claims
is one message. The board is watched once, however many browsers are open.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final

from sandpool.api.labels import LAUNCH_COLD, LAUNCH_WARM
from sandpool.api.resource import Key
from sandpool.dashboard.rows import KINDS, ClaimRow, NodeRow, Row, SandboxRow
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client

#: Rows of one message: kind, then ``namespace/name``, then the fields of the row; None if the object is gone.
Changes = dict[str, dict[str, dict[str, Any] | None]]


class Subscription:
    """The changes that one browser has not been told yet."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._dirty: set[tuple[str, Key]] = set()
        self._changed = asyncio.Event()

    def note(self, kind: str, key: Key) -> None:
        self._dirty.add((kind, key))
        self._changed.set()

    async def changed(self) -> None:
        """Wait until there is a change."""
        await self._changed.wait()

    def take(self) -> Changes:
        """The rows that changed since the last call, as they are now."""
        changes: Changes = {}
        for kind, key in self._dirty:
            row = self._board.caches[kind].get(key)
            changes.setdefault(kind, {})[str(key)] = None if row is None else row._asdict()
        self._dirty.clear()
        self._changed.clear()
        return changes


class Board:
    """Rows of all objects in one namespace or all. ``run`` keeps it up to date."""

    def __init__(self, client: Client, clock: Clock, rng: Random, namespace: str | None = None) -> None:
        self.caches: dict[str, Cache[Any]] = {}
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._subscriptions: set[Subscription] = set()
        self.launches = Launches(self)
        for kind, (type, project) in KINDS.items():
            cache = self.caches[kind] = Cache(project, name=type.plural)
            cache.subscribe(partial(self._note, kind))
            scope = namespace if type.namespaced else None
            self._reflectors[kind] = Reflector(client, type, cache, clock, rng, namespace=scope)

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors.values():
                group.create_task(reflector.run(), name=f"dashboard: {reflector.type}")

    async def attempted(self) -> None:
        """Wait until the board has everything that existed, or knows why not: a kind may be forbidden to read."""
        for reflector in self._reflectors.values():
            await reflector.attempted.wait()

    def age(self) -> float:
        """Seconds since the API last sent anything about a kind that could be read; large if it cannot be reached."""
        reflectors = self._reflectors.values()
        return max(each.age() for each in [each for each in reflectors if each.synced.is_set()] or reflectors)

    @property
    def unseen(self) -> dict[str, str]:
        """The kinds that could not be read so far, with the reason."""
        return {kind: each.problem for kind, each in self._reflectors.items() if not each.synced.is_set()}

    def rows(self) -> Changes:
        """All rows."""
        return {kind: {str(key): row._asdict() for key, row in cache.items()} for kind, cache in self.caches.items()}

    @property
    def nodes(self) -> set[str]:
        """The nodes with sandboxes that run, without simulated ones, which have no usage."""
        simulated = {
            key.name for key, row in self.caches["nodes"].items() if isinstance(row, NodeRow) and row.simulated
        }
        return {row.node for row in self.caches["sandboxes"] if row.node} - simulated

    @contextmanager
    def subscribed(self) -> Iterator[Subscription]:
        """Note all changes for the length of the block."""
        made = Subscription(self)
        self._subscriptions.add(made)
        try:
            yield made
        finally:
            self._subscriptions.discard(made)

    def _note(self, kind: str, key: Key, old: Row | None, new: Row | None) -> None:
        self.launches.note(kind, key, new)
        for each in self._subscriptions:
            each.note(kind, key)


class Launches:
    """Counts, for each pool, the claims that got a warm and a cold sandbox, each claim once."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._counted: dict[Key, str] = {}  # the UID of the claim that was counted under this name
        self.by_pool: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])  # warm, cold

    def note(self, kind: str, key: Key, row: Row | None) -> None:
        """Take in a change of a claim or a sandbox; both are needed, and they change in any order."""
        if kind == "claims":
            if row is None:
                self._counted.pop(key, None)
            else:
                self._count(key)
        elif isinstance(row, SandboxRow) and row.claim:
            self._count(Key(key.namespace, row.claim))

    def _count(self, key: Key) -> None:
        claim: ClaimRow | None = self._board.caches["claims"].get(key)
        if claim is None or not claim.ready or self._counted.get(key) == claim.uid:
            return
        sandbox = self._board.caches["sandboxes"].get(Key(key.namespace, claim.sandbox))
        if sandbox is None or sandbox.launch not in _COLUMNS:
            return
        self._counted[key] = claim.uid
        self.by_pool[str(Key(key.namespace, claim.pool))][_COLUMNS[sandbox.launch]] += 1


_COLUMNS: Final = {LAUNCH_WARM: 0, LAUNCH_COLD: 1}
