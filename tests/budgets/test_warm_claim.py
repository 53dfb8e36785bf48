"""A warm claim: two writes one after the other until it is ready, four and an event in all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest_asyncio

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.controllers.manager import ControllerManager
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.testing.backend import Backend, new_namespace
from sandpool.testing.clock import ManualClock
from sandpool.testing.world import World
from tests.support.costs import Costs, told

ROUND_TRIP = 1.0  # seconds on the world's clock


async def test_until_ready_a_claim_costs_two_writes_and_nothing_else(world: World) -> None:
    await world.template()
    await world.pool(3)
    costs = Costs(world)

    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]

    until_ready = []
    for each in costs.about("mine", box):
        # The pod is put right meanwhile, by another controller; nobody waits for that, see the round trips below.
        if each.resource != "pods":
            until_ready.append(str(each))
        if str(each) == "patch sandboxclaims/status":
            break
    assert until_ready == ["patch sandboxes", "patch sandboxclaims/status"]
    assert costs.reads() == []
    assert costs.refused() == []


async def test_in_all_a_claim_costs_four_writes_and_an_event(world: World) -> None:
    await world.template()
    await world.pool(3)
    costs = Costs(world)

    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]
    await world.wait(3600)

    writes = [each for each in costs.about("mine", box) if each.resource != "events"]
    assert told(writes) == ["patch pods", "patch sandboxclaims", "patch sandboxclaims/status", "patch sandboxes"]
    assert told(costs.events()) == ["create events"]
    assert costs.claim_reconciles["mine"] <= 2
    assert costs.sandbox_reconciles[box] <= 2
    assert costs.reads() == []
    assert costs.refused() == []


class Distant:
    """A transport whose requests take a second there and back, on the world's clock. News arrives at once."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self.transport = transport
        self.clock = clock

    async def request(self, request: Request) -> Any:
        await self.clock.sleep(ROUND_TRIP)
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        await self.transport.close()


class DistantWorld(World):
    """One whose controllers are far away from the API, once they have been restarted."""

    far = False

    def new_controllers(self) -> ControllerManager:
        controllers = super().new_controllers()
        if not self.far:
            return controllers
        distant = ControllerManager(Client(Distant(self.wire, self.clock)), self.clock, self.random, self.settings)
        for reflector, near in zip(distant.informers.reflectors, controllers.informers.reflectors, strict=True):
            reflector.client, reflector.clock = near.client, near.clock
        return distant


@pytest_asyncio.fixture(loop_scope="session")
async def distant(backend: Backend) -> AsyncIterator[DistantWorld]:
    world = DistantWorld(backend, await new_namespace(backend), clock=ManualClock(datetime.now(UTC)))
    await world.start()
    await world.settle()
    yield world
    await world.stop()


async def test_a_claim_is_ready_after_two_round_trips(distant: DistantWorld) -> None:
    world = distant
    await world.template()
    await world.pool(3)
    world.far = True
    await world.restart()
    await world.wait(60)

    await world.claim("mine")
    await world.wait(2 * ROUND_TRIP - 0.001)
    assert not is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    await world.wait(0.001)
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
