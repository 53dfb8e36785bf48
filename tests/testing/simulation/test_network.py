"""The network of a simulation: what is sent arrives whoever dies, and what is told is told in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube.client import Client, MergePatch
from sandpool.testing.objects import new
from sandpool.testing.simulation.api import WitnessedStore, start_server
from sandpool.testing.simulation.event_loop import LoopClock, Process, SimulationLoop
from sandpool.testing.simulation.network import SimulatedWire
from sandpool.testing.simulation.network_faults import Weather
from sandpool.testing.simulation.trace import Trace


class Post:
    """A server, and a wire to it."""

    def __init__(self, wire: SimulatedWire, client: Client, store: WitnessedStore) -> None:
        self.wire = wire
        self.client = client  # of nobody in particular, without a wire
        self.store = store


def simulate(seed: int, story: Callable[[Post], Coroutine[Any, Any, None]], **weather: Any) -> Trace:
    random = Random(seed)
    loop = SimulationLoop(random)
    trace = Trace(loop.time)

    async def live() -> None:
        server, store = await start_server(LoopClock(loop), random, lambda: 0.001)
        wire = SimulatedWire(server.client(name="tester").transport, Weather(random, **weather), trace, "tester")
        await story(Post(wire, server.client(), store))

    loop.run(live())
    return trace


@pytest.mark.parametrize("seed", range(5))
def test_events_arrive_in_order_however_late(seed: int) -> None:
    async def story(post: Post) -> None:
        client = Client(post.wire)
        version = (await post.client.list(CONFIG_MAP, "default"))["metadata"]["resourceVersion"]
        seen: list[str] = []

        async def watch() -> None:
            async for event in client.watch(CONFIG_MAP, "default", resource_version=version, allow_bookmarks=False):
                seen.append(event.object["metadata"]["name"])  # noqa: PERF401 - it is looked at meanwhile

        watching = asyncio.create_task(watch())
        for number in range(20):
            await post.client.create(CONFIG_MAP, new(CONFIG_MAP, f"m{number}"), "default")
        assert len(seen) < 20, "the watch lags"
        await asyncio.sleep(300)
        watching.cancel()
        assert seen == [f"m{number}" for number in range(20)]

    simulate(seed, story, lag=0.01, stalls=0.5, watch_lag=2.0)


def test_a_request_arrives_although_its_sender_has_died() -> None:
    async def story(post: Post) -> None:
        process = Process("victim")
        process.run(Client(post.wire).create(CONFIG_MAP, new(CONFIG_MAP, "late"), "default"))
        sent = asyncio.Event()
        post.wire.sent = lambda request: sent.set()
        await sent.wait()
        process.kill()
        post.wire.cut()
        assert post.store.get("configmaps", ("default", "late")) is None
        await asyncio.sleep(60)
        assert post.store.get("configmaps", ("default", "late")) is not None

    simulate(3, story, lag=1.0)


def test_what_is_lost_was_carried_out_and_what_is_cut_was_not() -> None:
    async def story(post: Post) -> None:
        client = Client(post.wire)
        for name, rate in (("lost", "losses"), ("cut", "cuts"), ("refused", "refusals")):
            setattr(post.wire.weather, rate, 1.0)
            with pytest.raises(Exception, match=r"\w"):
                await client.create(CONFIG_MAP, new(CONFIG_MAP, name), "default")
            setattr(post.wire.weather, rate, 0.0)
        there = {entry.key[1] for entry in post.store.scan("configmaps", "default")}
        assert "lost" in there and not there & {"cut", "refused"}

    simulate(1, story)


def test_the_store_knows_who_wrote() -> None:
    async def story(post: Post) -> None:
        seen: list[tuple[str, str]] = []
        post.store.witness(lambda resource, change, writer: seen.append((change.type, writer)))
        client = Client(post.wire)
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
        await post.client.patch(CONFIG_MAP, "a", MergePatch({"data": {"x": "1"}}), "default")
        await client.delete(CONFIG_MAP, "a", "default")
        assert seen == [("ADDED", "tester"), ("MODIFIED", "server"), ("DELETED", "tester")]

    simulate(1, story)
