"""The part of this process in a move of the storage: it takes the objects in before it serves, and gives them up.

``sandpool storage move`` (``install.storage_move``) leads, and keeps a record of the move in a ConfigMap, which this
process follows and reports in.

* **In.** The volume is empty, and the custom resources are still there, served under a version of their own. The
  process reports that it waits. When kube-apiserver passes requests for our kinds on to it, so that nothing changes the
  custom resources any more, it copies them, with their UIDs and in one commit. Only then does it serve: an API that
  served less would have the garbage collector delete pods.
* **Out.** The controllers stop, and writes are refused. The process reports that, serves reads until it is stopped, and
  then ends all watches with an error that makes their clients list again, from where the objects are then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from sandpool.api.kinds import CONFIG_MAP, SANDPOOL
from sandpool.api.resource import Key, Object, ResourceType, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import Backoff
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, NotFound
from sandpool.server.auth.private_files import write_private
from sandpool.server.store.store import Store

_log = logging.getLogger(__name__)

#: The ConfigMap with the record of a move, in the namespace of the installation, and its keys.
RECORD: Final = "agent-sandbox-storage-move"
ID: Final = "id"  # of this move
TO: Final = "to"  # CRD or AGGREGATED
WAITING: Final = "waiting"  # this process holds the lease, and waits for IMPORT
IMPORT: Final = "import"  # the custom resources do not change any more
IMPORTED: Final = "imported"  # how many objects are on the volume
FROZEN: Final = "frozen"  # the revision at which writes ended
COPIED: Final = "copied"  # all objects are custom resources
OWNED: Final = "owned"  # they are served, and own what they owned before
CRD: Final = "crd"
AGGREGATED: Final = "aggregated"
#: The version under which custom resources are reached while kube-apiserver passes requests for ours on.
VERSION: Final = "moving"
# Revisions continue above those of etcd, with a margin for what other objects write meanwhile, so that watches from
# before start over. It is small, because on the way back etcd has to pass the revisions that clients remember.
_GAP: Final = 10_000
_PAGE: Final = 500

_Data = tuple[tuple[str, str], ...]


def moving(type: ResourceType) -> ResourceType:
    """A kind of ours as it is served while its storage moves."""
    return replace(type, version=VERSION)


class MoveRecord:
    """Follows the record, and writes reports into it."""

    def __init__(self, client: Client, namespace: str, clock: Clock, rng: Random) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._pauses: Backoff[None] = Backoff(rng, first=0.5, longest=10.0)
        self._cache: Cache[_Data] = Cache(_data, name=RECORD)
        self._cache.subscribe(self._changed)
        self._news = asyncio.Event()
        self._reflector = Reflector(
            client, CONFIG_MAP, self._cache, clock, rng, namespace=namespace, field_selector=f"metadata.name={RECORD}"
        )

    @property
    def synced(self) -> asyncio.Event:
        return self._reflector.synced

    @property
    def data(self) -> Mapping[str, str]:
        """The record; empty while nothing moves."""
        return dict(self._cache.get(Key(self._namespace, RECORD)) or ())

    async def run(self) -> None:
        """Follow the record until cancelled."""
        await self._reflector.run()

    async def until(self, met: Callable[[Mapping[str, str]], bool]) -> None:
        """Wait until the record meets a condition."""
        while not met(self.data):
            self._news.clear()
            await self._news.wait()

    async def report(self, key: str, value: str) -> None:
        """Write a value, however long kube-apiserver takes to accept it."""
        while True:
            try:
                await self._client.patch(CONFIG_MAP, RECORD, MergePatch({"data": {key: value}}), self._namespace)
                return
            except NotFound:
                return  # the move has ended, or was given up
            except (ApiError, OSError) as error:
                _log.warning("could not report the move of the storage: %s", error)
            await self._clock.sleep(self._pauses.next_delay(None))

    async def take_in(self, store: Store, data_dir: Path) -> None:
        """Fill an empty volume if the storage moves here. Raises ``ValueError`` if the volume has other objects."""
        mark = data_dir / "move"
        while (data := self.data).get(TO) == AGGREGATED:
            identity = data.get(ID, "")
            if store.revision:
                if not mark.exists() or mark.read_text(encoding="ascii") != identity:
                    raise ValueError(
                        f"{data_dir} has the objects of an earlier installation, and the storage moves here: give "
                        "them up by deleting the PersistentVolumeClaim, or move the storage to another volume"
                    )
                await self.report(IMPORTED, str(sum(store.count(each.group_resource) for each in SANDPOOL)))
                return
            if IMPORT not in data:
                await self.report(WAITING, "true")
                _log.info("waiting for the custom resources, to take them in")
                await self.until(lambda now: now.get(TO) != AGGREGATED or IMPORT in now)
                continue
            write_private(mark, identity.encode("ascii"))
            await self._import(store)
            if not store.revision:  # there is no object
                await self.report(IMPORTED, "0")
                return

    async def _import(self, store: Store) -> None:
        while True:
            try:
                count = await import_objects(self._client, store)
                _log.info("took in %d objects", count)
                return
            except (ApiError, OSError) as error:
                _log.warning("could not read the custom resources: %s", error)
            await self._clock.sleep(self._pauses.next_delay(None))

    def _changed(self, key: Key, old: _Data | None, new: _Data | None) -> None:
        self._news.set()


async def import_objects(client: Client, store: Store) -> int:
    """Copy all custom resources of our kinds into an empty store, in one commit; returns their number."""
    found: list[tuple[str, Key, Object]] = []
    newest = 0
    for type in SANDPOOL:
        token: str | None = None
        while True:
            page = await client.list(moving(type), limit=_PAGE, continue_token=token)
            newest = max(newest, int(page["metadata"]["resourceVersion"]))
            for each in page["items"]:
                typed = {**each, "apiVersion": type.api_version, "kind": type.kind}
                found.append((type.group_resource, Key.of(each), typed))
            token = page["metadata"].get("continue")
            if not token:
                break
    await store.fill(found, newest + _GAP)
    return len(found)


def _data(config_map: SharedObject) -> _Data:
    data: Mapping[str, str] = config_map.get("data") or {}
    return tuple(sorted(data.items()))
