"""Detection of quiescence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.api.resource import Key
from sandpool.engine.cache.store import Cache
from sandpool.kube.client import Client
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod
from sandpool.testing.quiescence import Quiescence


class Scene:
    """A client that writes, and a cache of pods that the test updates."""

    def __init__(self, server: ApiServer) -> None:
        self.clock = ManualClock()
        self.looking = FaultyTransport(server.client().transport)
        self.wire = FaultyTransport(server.client().transport)
        self.client = Client(self.wire)
        self.pods: Cache[str] = Cache(lambda pod: pod["metadata"]["name"])
        client = Client(self.looking)
        self.quiescence = Quiescence(self.clock, client, "default", [self.wire], lambda: [(POD, self.pods)])

    async def looked(self) -> asyncio.Task[None]:
        """Wait for quiescence in a task, with a look at the API."""
        looks = asyncio.Event()
        self.looking.fault = lambda request: looks.set()
        reached = asyncio.create_task(self.quiescence.reached())
        await looks.wait()
        return reached


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    server = ApiServer(tmp_path)
    await server.start()
    yield Scene(server)
    await server.stop()


async def test_quiescence_waits_until_caches_have_seen_a_write(scene: Scene) -> None:
    made = await scene.client.create(POD, pod("box"), "default")
    reached = await scene.looked()
    assert not reached.done()
    scene.pods.observe(made)
    await reached


async def test_quiescence_waits_until_caches_have_seen_a_deletion(scene: Scene) -> None:
    made = await scene.client.create(POD, pod("box"), "default")
    scene.pods.observe(made)
    await scene.quiescence.reached()
    await scene.client.delete(POD, "box", "default", grace_period_seconds=0)
    reached = await scene.looked()
    assert not reached.done()
    scene.pods.record_deletion(Key("default", "box"), made["metadata"]["uid"], None)
    await reached


async def test_kinds_without_a_cache_are_ignored(scene: Scene) -> None:
    await scene.client.create(CONFIG_MAP, new(CONFIG_MAP, "settings"), "default")
    await scene.client.get(CONFIG_MAP, "settings", "default")
    await scene.quiescence.reached()
    assert scene.looking.requests == []


async def test_timers_fire_while_time_passes(scene: Scene) -> None:
    async def writer() -> None:
        for number in range(3):
            await scene.clock.sleep(10)
            scene.pods.observe(await scene.client.create(POD, pod(f"box-{number}"), "default"))

    writing = asyncio.create_task(writer())
    await scene.quiescence.passed(25)
    assert sorted(scene.pods) == ["box-0", "box-1"]
    assert scene.clock.monotonic() == 25
    await scene.quiescence.passed(5)
    assert len(scene.pods) == 3
    await writing
