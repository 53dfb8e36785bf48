"""The parts of the engine together, on a real API server: a controller that copies a value and counts what it costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Key, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import SystemClock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.client import MergePatch
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new

NAMESPACE = "default"


class Item(NamedTuple):
    name: str
    value: str | None
    copy: str | None


def item(object: SharedObject) -> Item:
    data = object.get("data", {})
    return Item(object["metadata"]["name"], data.get("value"), data.get("copy"))


class Copier:
    """Keeps ``copy`` equal to ``value`` in every config map that carries the label."""

    def __init__(self, server: ApiServer) -> None:
        self.client = server.client()
        self.cache = Cache(item, name="config maps")
        clock, rng = SystemClock(), Random(0)
        self.reflector = Reflector(self.client, CONFIG_MAP, self.cache, clock, rng, label_selector="copy")
        self.controller = Controller("copier", self.reconcile, clock, rng, workers=50)
        self.passes: Counter[str] = Counter()
        self.writes = 0
        self.cache.subscribe(lambda key, old, new: self.controller.enqueue(key), on_change_of=lambda view: view.value)

    async def reconcile(self, key: Key) -> Result:
        self.passes[key.name] += 1
        view = self.cache.get(key)
        if view is not None and view.copy != view.value:
            self.writes += 1
            patch = MergePatch({"data": {"copy": view.value}})
            self.cache.record_write(await self.client.patch(CONFIG_MAP, key.name, patch, key.namespace))
        return DONE

    async def write(self, name: str, value: str) -> None:
        await self.client.patch(CONFIG_MAP, name, MergePatch({"data": {"value": value}}), NAMESPACE)

    async def create(self, name: str, value: str) -> None:
        config_map = new(CONFIG_MAP, name, metadata={"labels": {"copy": ""}}, data={"value": value})
        await self.client.create(CONFIG_MAP, config_map, NAMESPACE)

    async def settled(self) -> None:
        """Wait until the cache is up to date and every change is reconciled."""
        last = new(CONFIG_MAP, None, metadata={"labels": {"copy": ""}, "generateName": "last-"})
        marker = Key.of(await self.client.create(CONFIG_MAP, last, NAMESPACE))
        seen = asyncio.Event()
        self.cache.subscribe(lambda key, old, new: seen.set() if key == marker else None)
        async with asyncio.timeout(20):
            await seen.wait()
            await self.controller.queue.settled()


@pytest.fixture
async def copier(tmp_path: Path) -> AsyncIterator[Copier]:
    server = ApiServer(tmp_path)
    await server.start()
    copier = Copier(server)
    tasks = [asyncio.create_task(work) for work in (copier.reflector.run(), copier.controller.run())]
    yield copier
    await copier.controller.stop(10)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()


async def test_r33_one_change_is_one_reconcile_and_one_write(copier: Copier) -> None:
    names = [f"m{number}" for number in range(60)]
    await asyncio.gather(*(copier.create(name, "1") for name in names))
    await copier.settled()
    assert {copier.passes[name] for name in names} == {1}
    assert copier.writes == 60
    for name in names[:10]:
        await copier.write(name, "2")
    await copier.settled()
    assert [copier.passes[name] for name in names] == [2] * 10 + [1] * 50
    assert copier.writes == 70
    assert copier.controller.failures == 0


async def test_change_during_a_reconcile_is_not_missed(copier: Copier) -> None:
    await copier.create("m", "0")
    await asyncio.gather(*(copier.write("m", str(number)) for number in range(50)))
    await copier.settled()
    view = copier.cache.get(Key(NAMESPACE, "m"))
    assert view is not None
    assert view.copy == view.value
    assert item(await copier.client.get(CONFIG_MAP, "m", NAMESPACE)) == view
