"""Watches the members of a pool: how many are ready, and since when.

One watch is open for the whole run, so the level of the pool is known at every moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import SharedObject
from sandpool.engine.clock import Clock, within
from sandpool.kube.client import Client
from sandpool.kube.transport import WatchEvent


class Members:
    """The members of one pool, used as ``async with``: the watch is open inside.

    The pool's status shows the level too, but later."""

    def __init__(self, client: Client, clock: Clock, namespace: str, pool: str) -> None:
        self.client = client
        self.clock = clock
        self.namespace = namespace
        self.selector = f"{WARM_POOL}={name_hash(pool)}"
        self.ready: dict[str, SharedObject] = {}  # by name
        self.levels: list[tuple[float, int]] = []  # when it changed and what it was from then on
        self.first_ready: dict[str, float] = {}  # by name, of all that ever were members
        self._changed = asyncio.Event()  # set and replaced whenever something happens
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Members:
        listed = await self.client.list(SANDBOX, self.namespace, label_selector=self.selector)
        for item in listed["items"]:
            self._observe("ADDED", item)
        version = listed["metadata"]["resourceVersion"]
        self._watching = asyncio.create_task(self._watch(version), name="watch of the pool's members")
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def full(self, replicas: int, timeout: float, *, marked: str = "") -> None:
        """Wait until ``count`` members are ready and all come from the template with this mark.

        Raises the failure of the watch, or ``TimeoutError``."""

        async def changes() -> None:
            while not self._is_full(replicas, marked):
                changed = asyncio.create_task(self._changed.wait())
                assert self._watching is not None
                try:
                    await asyncio.wait((changed, self._watching), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if self._watching.done():
                    await self._watching

        try:
            await within(self.clock, timeout, changes())
        except TimeoutError:
            raise TimeoutError(f"{len(self.ready)} of {replicas} sandboxes of the pool were ready in time") from None

    def _is_full(self, replicas: int, marked: str) -> bool:
        return len(self.ready) == replicas and all(mark_of(member) == marked for member in self.ready.values())

    async def _watch(self, version: str) -> None:
        while True:
            stream = self.client.watch(SANDBOX, self.namespace, label_selector=self.selector, resource_version=version)
            async with aclosing(cast(AsyncGenerator[WatchEvent, None], stream)) as events:
                async for event in events:
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self._observe(event.type, event.object)

    def _observe(self, type: str, member: SharedObject) -> None:
        name, before = member["metadata"]["name"], len(self.ready)
        if type == "DELETED" or not is_ready(member) or member["metadata"].get("deletionTimestamp"):
            self.ready.pop(name, None)
        else:
            self.ready[name] = member
            self.first_ready.setdefault(name, self.clock.monotonic())
        if len(self.ready) != before:
            self.levels.append((self.clock.monotonic(), len(self.ready)))
        self._changed.set()
        self._changed = asyncio.Event()


#: An environment variable of the template. Every controller copies it into sandboxes, so it shows their template.
MARK = "BENCH_GENERATION"


def mark_of(sandbox: SharedObject) -> str:
    container = sandbox["spec"]["podTemplate"]["spec"]["containers"][0]
    return next((each.get("value", "") for each in container.get("env") or () if each["name"] == MARK), "")
