"""A log of the owners of sandboxes, for guarantees about every moment.

The final state does not show that a sandbox had two owners on the way. The log receives every version of every object
of a namespace: a watch that breaks is resumed at its last version. A restarted API has no history, so the objects that
exist then are compared with the log.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, Gone
from sandpool.testing.waiting import until
from sandpool.testing.world import owner_of

_PAUSE = 0.2  # seconds before a watch that broke is opened again
# Errors of an API that starts or stops.
_AWAY = (ApiError, OSError, TimeoutError)


class OwnershipLog:
    """Records one namespace for the length of an ``async with``. ``owners`` are the claims that have owned each
    sandbox, ``held`` the sandboxes that each claim has named, both in order and by UID."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.owners: dict[str, list[str]] = {}
        self.held: dict[str, list[str]] = {}
        self._seen: dict[ResourceType, int] = {}  # the newest version of each type in the log
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for type in (SANDBOX, SANDBOX_CLAIM):
            await self._look(type)
            self._following.append(asyncio.create_task(self._follow(type)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    async def complete(self) -> None:
        """Wait until the log includes all current objects."""
        wanted = {
            type: max(
                (
                    int(each["metadata"]["resourceVersion"])
                    for each in (await self.client.list(type, self.namespace))["items"]
                ),
                default=0,
            )
            for type in self._seen
        }

        async def written() -> bool:
            for task in self._following:
                assert not task.done(), f"the watch ended: {task}"
            return all(self._seen[type] >= version for type, version in wanted.items())

        await until(written)

    def check(self) -> None:
        """Fail if a sandbox had two claims or a claim two sandboxes."""
        assert {uid: owners for uid, owners in self.owners.items() if len(owners) > 1} == {}
        assert {uid: held for uid, held in self.held.items() if len(held) > 1} == {}

    async def _follow(self, type: ResourceType) -> None:
        while True:
            try:
                await self._watch(type)
            except Gone:
                with suppress(*_AWAY):
                    await self._look(type)
            except _AWAY:
                pass
            await asyncio.sleep(_PAUSE)

    async def _look(self, type: ResourceType) -> None:
        listed = await self.client.list(type, self.namespace)
        for each in listed["items"]:
            self._note(type, each)
        self._seen[type] = int(listed["metadata"]["resourceVersion"])

    async def _watch(self, type: ResourceType) -> None:
        async for event in self.client.watch(type, self.namespace, resource_version=str(self._seen[type])):
            if event.type not in ("BOOKMARK", "DELETED"):
                self._note(type, event.object)
            self._seen[type] = int(event.object["metadata"]["resourceVersion"])

    def _note(self, type: ResourceType, object: SharedObject) -> None:
        uid = object["metadata"]["uid"]
        if type is SANDBOX:
            kind, _ = owner_of(object)
            owner = _controller_uid(object) if kind == SANDBOX_CLAIM.kind else ""
            _append(self.owners.setdefault(uid, []), owner)
        else:
            named = (object.get("status") or {}).get("sandbox") or {}
            _append(self.held.setdefault(uid, []), named.get("name") or "")


def _controller_uid(object: SharedObject) -> str:
    return next(str(each["uid"]) for each in object["metadata"]["ownerReferences"] if each.get("controller"))


def _append(entries: list[str], entry: str) -> None:
    if entry and entry not in entries[-1:]:
        entries.append(entry)
