"""Claims are created when due, and measured until the watch shows Ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.bench.load import Load
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock


class Rig:
    """An API that makes claims ready when a test says so."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.made: list[tuple[float, str]] = []
        self.deleted: list[tuple[float, str]] = []
        self.refuses: set[str] = set()
        self.events: asyncio.Queue[WatchEvent] = asyncio.Queue()

    async def request(self, request: Request) -> Any:
        if request.method == "GET":
            return {"metadata": {"resourceVersion": "7"}, "items": []}
        if request.method == "DELETE":
            self.deleted.append((self.clock.monotonic(), request.path.rpartition("/")[2]))
            return {}
        name = request.body["metadata"]["name"]
        if name in self.refuses:
            raise Forbidden("no")
        self.made.append((self.clock.monotonic(), name))
        self.events.put_nowait(WatchEvent("ADDED", claim(name)))
        return claim(name)

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        assert request.query["resourceVersion"] == "7"
        while True:
            yield await self.events.get()

    async def close(self) -> None: ...

    def serve(self, name: str) -> None:
        conditions = [{"type": "Ready", "status": "True"}]
        served = claim(name, status={"conditions": conditions, "sandbox": {"name": f"box-of-{name}"}})
        self.events.put_nowait(WatchEvent("MODIFIED", served))


def claim(name: str, **fields: Any) -> Object:
    return {"metadata": {"name": name, "resourceVersion": "8"}, **fields}


async def test_claims_are_created_when_due_without_waiting_for_others() -> None:
    clock = ManualClock()
    rig = Rig(clock)
    async with Load(Client(rig), clock, "ns", "pool") as load:
        running = asyncio.create_task(load.run([[0.0, 0.0, 2.0]]))
        await clock.advance(3)
        assert rig.made == [(0, "claim-0"), (0, "claim-1"), (2, "claim-2")]
        rig.serve("claim-2")
        rig.serve("claim-0")
        await clock.advance(1)
        rig.serve("claim-1")
        await clock.settle()
        outcome = await running
    assert outcome.latencies == [3.0, 4.0, 1.0]
    assert [each.sandbox for each in outcome.claims] == ["box-of-claim-0", "box-of-claim-1", "box-of-claim-2"]
    assert outcome.seconds == 4.0


async def test_claims_leave_after_their_lifetime_while_others_come() -> None:
    clock = ManualClock()
    rig = Rig(clock)
    async with Load(Client(rig), clock, "ns", "pool", lifetime=5.0) as load:
        running = asyncio.create_task(load.run([[0.0, 0.0, 8.0]]))
        await clock.advance(1)
        rig.serve("claim-0")
        await clock.advance(1)
        rig.serve("claim-1")
        await clock.advance(5)
        assert rig.deleted == [(6, "claim-0"), (7, "claim-1")]
        await clock.advance(1)
        rig.serve("claim-2")
        await clock.settle()
        outcome = await running
    assert len(outcome.latencies) == 3
    assert len(rig.deleted) == 2, "what lives at the end is left to the removal of the namespace"


async def test_only_the_first_ready_counts() -> None:
    clock = ManualClock()
    rig = Rig(clock)
    async with Load(Client(rig), clock, "ns", "pool") as load:
        running = asyncio.create_task(load.run([[0.0, 5.0]]))
        await clock.advance(1)
        rig.serve("claim-0")
        await clock.advance(1)
        rig.serve("claim-0")
        await clock.advance(3)
        rig.serve("claim-1")
        await clock.settle()
        outcome = await running
    assert outcome.latencies == [1.0, 0.0]


async def test_wave_begins_when_the_previous_one_is_served() -> None:
    clock = ManualClock()
    rig = Rig(clock)
    async with Load(Client(rig), clock, "ns", "pool") as load:
        running = asyncio.create_task(load.run([[0.0], [1.0]]))
        await clock.advance(10)
        assert [name for _, name in rig.made] == ["claim-0"]
        rig.serve("claim-0")
        await clock.advance(2)
        assert rig.made[1:] == [(11, "claim-1")]
        rig.serve("claim-1")
        await clock.settle()
        await running


async def test_unserved_claim_has_no_latency_and_rejected_claim_is_not_counted() -> None:
    clock = ManualClock()
    rig = Rig(clock)
    rig.refuses = {"claim-1"}
    told: list[str] = []
    async with Load(Client(rig), clock, "ns", "pool", show=told.append) as load:
        running = asyncio.create_task(load.run([[0.0, 0.0, 0.0]], timeout=30))
        await clock.advance(5)
        rig.serve("claim-2")
        await clock.advance(30)
        outcome = await running
    assert outcome.latencies == [5.0]
    assert outcome.failed == ["claim-1: no"]
    assert told[0] == "[######..............] 3 of 3 claims made, 2 waiting"
    assert told[5] == "[#############.......] 3 of 3 claims made, 1 waiting"


async def test_failing_watch_ends_the_load() -> None:
    clock = ManualClock()

    class Broken(Rig):
        async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
            yield WatchEvent("ADDED", claim("another"))
            raise ConnectionError("gone")

    async with Load(Client(Broken(clock)), clock, "ns", "pool") as load:
        with pytest.raises(ConnectionError, match="gone"):
            await load.run([[0.0]])


async def test_load_stops_when_too_many_claims_wait() -> None:
    clock = ManualClock()
    rig = Rig(clock)
    async with Load(Client(rig), clock, "ns", "pool", most_waiting=2) as load:
        running = asyncio.create_task(load.run([[0.0, 1.0, 2.0, 3.0]], timeout=10))
        await clock.advance(20)
        outcome = await running
    assert [name for _, name in rig.made] == ["claim-0", "claim-1"]
    assert outcome.given_up == 2.0


async def test_throughput_is_served_claims_divided_by_wall_time() -> None:
    clock = ManualClock()
    rig = Rig(clock)
    async with Load(Client(rig), clock, "ns", "pool") as load:
        running = asyncio.create_task(load.run([[0.0] * 10]))
        await clock.advance(10)  # the first one takes long
        for number in range(9):
            rig.serve(f"claim-{number}")
            await clock.advance(1)
        await clock.advance(1)  # and so does the last
        rig.serve("claim-9")
        await clock.settle()
        outcome = await running
    assert outcome.throughput == 10 / 20
