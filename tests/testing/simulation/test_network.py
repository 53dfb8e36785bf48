"""The simulated network: requests outlive their senders, and watch events arrive in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Key
from sandpool.kube.client import Client, MergePatch
from sandpool.testing.objects import new
from sandpool.testing.simulation.api import AttributedStore, start_server
from sandpool.testing.simulation.event_loop import LoopClock, Process, SimulationLoop
from sandpool.testing.simulation.network import SimulatedTransport
from sandpool.testing.simulation.network_faults import NetworkFaults
from sandpool.testing.simulation.trace import Trace


class Fixture:
    """A server and a simulated transport to it."""

    def __init__(self, transport: SimulatedTransport, client: Client, store: AttributedStore) -> None:
        self.transport = transport
        self.client = client  # without a simulated network
        self.store = store


def simulate(seed: int, story: Callable[[Fixture], Coroutine[Any, Any, None]], **faults: Any) -> Trace:
    rng = Random(seed)
    loop = SimulationLoop(rng)
    trace = Trace(loop.time)

    async def live() -> None:
        server, store = await start_server(LoopClock(loop), rng, lambda: 0.001)
        transport = SimulatedTransport(
            server.client(name="tester").transport, NetworkFaults(rng, **faults), trace, "tester"
        )
        await story(Fixture(transport, server.client(), store))

    loop.run(live())
    return trace


@pytest.mark.parametrize("seed", range(5))
def test_delayed_watch_events_arrive_in_order(seed: int) -> None:
    async def story(fixture: Fixture) -> None:
        client = Client(fixture.transport)
        version = (await fixture.client.list(CONFIG_MAP, "default"))["metadata"]["resourceVersion"]
        seen: list[str] = []

        async def watch() -> None:
            async for event in client.watch(CONFIG_MAP, "default", resource_version=version, allow_bookmarks=False):
                seen.append(event.object["metadata"]["name"])  # noqa: PERF401 - the test reads it meanwhile

        watching = asyncio.create_task(watch())
        for number in range(20):
            await fixture.client.create(CONFIG_MAP, new(CONFIG_MAP, f"m{number}"), "default")
        assert len(seen) < 20, "the watch lags"
        await asyncio.sleep(300)
        watching.cancel()
        assert seen == [f"m{number}" for number in range(20)]

    simulate(seed, story, lag=0.01, stalls=0.5, watch_lag=2.0)


def test_request_of_a_killed_sender_is_delivered() -> None:
    async def story(fixture: Fixture) -> None:
        process = Process("victim")
        process.run(Client(fixture.transport).create(CONFIG_MAP, new(CONFIG_MAP, "late"), "default"))
        sent = asyncio.Event()
        fixture.transport.sent = lambda request: sent.set()
        await sent.wait()
        process.kill()
        fixture.transport.disconnect()
        assert fixture.store.get("configmaps", Key("default", "late")) is None
        await asyncio.sleep(60)
        assert fixture.store.get("configmaps", Key("default", "late")) is not None

    simulate(3, story, lag=1.0)


def test_only_requests_with_lost_responses_take_effect() -> None:
    async def story(fixture: Fixture) -> None:
        client = Client(fixture.transport)
        for name, rate in (("lost", "losses"), ("cut", "cuts"), ("refused", "refusals")):
            setattr(fixture.transport.faults, rate, 1.0)
            with pytest.raises(Exception, match=r"\w"):
                await client.create(CONFIG_MAP, new(CONFIG_MAP, name), "default")
            setattr(fixture.transport.faults, rate, 0.0)
        there = {entry.key[1] for entry in fixture.store.scan("configmaps", "default")}
        assert "lost" in there and not there & {"cut", "refused"}

    simulate(1, story)


def test_store_attributes_changes_to_writers() -> None:
    async def story(fixture: Fixture) -> None:
        seen: list[tuple[str, str]] = []
        fixture.store.add_write_observer(lambda resource, change, writer: seen.append((change.type, writer)))
        client = Client(fixture.transport)
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
        await fixture.client.patch(CONFIG_MAP, "a", MergePatch({"data": {"x": "1"}}), "default")
        await client.delete(CONFIG_MAP, "a", "default")
        assert seen == [("ADDED", "tester"), ("MODIFIED", "server"), ("DELETED", "tester")]

    simulate(1, story)
