"""The reflector against a real API server: the cache shows the objects of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.kube.client import MergePatch
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new

NAMESPACE = "default"


class Item(NamedTuple):
    name: str
    value: str

    def __str__(self) -> str:
        return self.value


def item(object: Object) -> Item:
    return Item(object["metadata"]["name"], object["data"]["value"])


class Rig:
    """A reflector of the config maps that carry a label, on a server of its own."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = server.client()
        self.clock = ManualClock()
        self.cache = Cache(item)
        self.log: list[str] = []
        self._changed = asyncio.Event()
        self.cache.subscribe(self._write_down)
        self.reflector = Reflector(
            self.client,
            CONFIG_MAP,
            self.cache,
            self.clock,
            Random(0),
            namespace=NAMESPACE,
            label_selector="test",
            page_size=2,
        )

    def _write_down(self, key: Key, old: Item | None, new: Item | None) -> None:
        self.log.append(f"{key.name}: {old} -> {new}")
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await self._changed.wait()
                self._changed.clear()

    async def create(self, name: str, value: str) -> SharedObject:
        config_map = new(CONFIG_MAP, name, metadata={"labels": {"test": ""}}, data={"value": value})
        return await self.client.create(CONFIG_MAP, config_map, NAMESPACE)

    async def write(self, name: str, value: str) -> SharedObject:
        return await self.client.patch(CONFIG_MAP, name, MergePatch({"data": {"value": value}}), NAMESPACE)

    def end_watches(self) -> None:
        self.server.store.resource_store("configmaps").hub.close()

    async def truth(self) -> set[Item]:
        found = await self.client.list(CONFIG_MAP, NAMESPACE, label_selector="test")
        return {item(object) for object in found["items"]}

    def shows(self, name: str, value: str) -> bool:
        return self.cache.get(Key(NAMESPACE, name)) == (name, value)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    server = ApiServer(tmp_path)
    await server.start()
    rig = Rig(server)
    for number in range(5):
        await rig.create(f"m{number}", "0")
    task = asyncio.create_task(rig.reflector.run())
    async with asyncio.timeout(20):
        await rig.reflector.synced.wait()
    await rig.clock.settle()  # now it watches
    yield rig
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop()


async def test_cache_follows_creations_updates_and_deletions_of_the_server(rig: Rig) -> None:
    assert len(rig.cache) == 5
    rig.log.clear()
    await rig.create("new", "1")
    await rig.write("m0", "2")
    await rig.client.patch(CONFIG_MAP, "m1", MergePatch({"metadata": {"labels": {"test": None}}}), NAMESPACE)
    await rig.client.delete(CONFIG_MAP, "m2", NAMESPACE)
    await rig.until(lambda: len(rig.log) == 4)
    assert rig.log == ["new: None -> 1", "m0: 0 -> 2", "m1: 0 -> None", "m2: 0 -> None"]
    assert set(rig.cache) == await rig.truth()


async def test_r36_changes_between_two_watches_are_not_missed(rig: Rig) -> None:
    rig.end_watches()
    await rig.write("m0", "1")
    await rig.client.delete(CONFIG_MAP, "m1", NAMESPACE)
    await rig.clock.advance(1)
    await rig.until(lambda: len(rig.cache) == 4)
    assert set(rig.cache) == await rig.truth()
    assert (rig.reflector.lists, rig.reflector.watches) == (1, 2)


async def test_r37_compacted_history_causes_a_relist(rig: Rig) -> None:
    rig.log.clear()
    rig.end_watches()
    await rig.clock.settle()
    await rig.write("m0", "1")
    await rig.client.delete(CONFIG_MAP, "m1", NAMESPACE)
    rig.server.store.compact("configmaps")
    while rig.reflector.lists == 1:
        await rig.clock.advance(1)
    await rig.until(lambda: len(rig.cache) == 4)
    assert rig.log == ["m0: 0 -> 1", "m1: 0 -> None"]
    assert set(rig.cache) == await rig.truth()


async def test_own_writes_are_visible_at_once_and_their_events_call_no_handler(rig: Rig) -> None:
    rig.log.clear()
    rig.cache.record_write(await rig.write("m0", "mine"))
    assert rig.shows("m0", "mine")
    uid = (await rig.client.get(CONFIG_MAP, "m1", NAMESPACE))["metadata"]["uid"]
    rig.cache.record_deletion(Key(NAMESPACE, "m1"), uid, await rig.client.delete(CONFIG_MAP, "m1", NAMESPACE))
    rig.cache.record_write(await rig.create("m1", "again"))
    assert rig.log == ["m0: 0 -> mine", "m1: 0 -> None", "m1: None -> again"]
    await rig.write("m4", "last")
    await rig.until(lambda: rig.shows("m4", "last"))
    assert rig.log[3:] == ["m4: 0 -> last"]
    assert set(rig.cache) == await rig.truth()
    assert not rig.cache._deleted


async def test_burst_of_changes_arrives_completely(rig: Rig) -> None:
    await asyncio.gather(*(rig.create(f"b{number}", str(number)) for number in range(100)))
    await asyncio.gather(*(rig.write(f"b{number}", "x") for number in range(0, 100, 2)))
    await rig.write("m0", "end")
    await rig.until(lambda: rig.shows("m0", "end"))
    assert set(rig.cache) == await rig.truth()
