"""All controllers together: start, restart during a burst, and stop."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

import pytest

from sandpool.api.kinds import EVENT, POD
from sandpool.controllers.manager import ControllerManager
from sandpool.controllers.options import ControllerOptions
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.tracing import Attributes, NoTracing, Span
from sandpool.kube.client import Client
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import pod
from sandpool.testing.waiting import WITHIN
from sandpool.testing.world import World, owners


@pytest.mark.parametrize("grace", [10.0, 0.0], ids=["passes finish", "passes are cut off"])
async def test_restart_during_a_burst_binds_nothing_twice(world: World, grace: float) -> None:
    await world.template()
    await world.pool(20)

    burst = [asyncio.create_task(world.claim(f"claim-{number}")) for number in range(16)]
    await world.eventually(lambda: any(claim.sandbox_name for claim in world.controllers.caches.claims))
    await world.restart(grace)
    await asyncio.gather(*burst)
    served = await world.served(16)
    await world.filled(20)

    assert len({box["metadata"]["name"] for box in served.values()}) == 16
    found = await owners(world)
    assert found.pop(("SandboxWarmPool", "pool")) == 20
    assert found == {("SandboxClaim", claim): 1 for claim in served}, "one each, with one owner"


async def test_second_start_writes_nothing(world: World) -> None:
    await world.template()
    await world.pool(3)
    await world.claim("mine")
    before = await world.served(1)
    await world.filled(3)
    await world.controllers.claims.annotations.queue.settled()

    await world.restart()
    since = len(world.wire.requests)
    await world.controllers.claims.controller.queue.settled()
    await world.controllers.warm_pools.controller.queue.settled()

    assert (await world.served(1))["mine"]["metadata"]["uid"] == before["mine"]["metadata"]["uid"]
    assert [each for each in world.writes(since) if "/sandboxwarmpools/" not in each.path] == []


@pytest.mark.parametrize("told", [True, False])
async def test_events_of_claims_can_be_disabled(world: World, told: bool) -> None:
    await world.restart(settings=ControllerOptions(claim_events=told))
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    await world.controllers.stop()
    kinds = {event["regarding"]["kind"] for event in await world.all(EVENT)}
    assert ("SandboxClaim" in kinds) is told


async def test_label_selectors_keep_foreign_pods_out_of_the_cache(world: World) -> None:
    await world.client.create(POD, pod("foreign"), world.namespace)
    await world.restart(settings=ControllerOptions(cache_label_selectors=True))
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    box = (await world.served(1))["mine"]
    names = {each.name for each in world.controllers.caches.pods}
    assert box["metadata"]["name"] in names
    assert "foreign" not in names


async def test_successor_keeps_no_state_of_served_claims(world: World) -> None:
    await world.template()
    await world.pool(2)
    await world.claim("mine")
    await world.served(1)
    await world.controllers.claims.annotations.queue.settled()
    await world.restart()
    await world.controllers.claims.controller.queue.settled()
    states = world.controllers.claims.states
    assert [state.first_observed for state in states._states.values()] == [None]


async def test_start_raises_when_an_informer_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controllers = ControllerManager(Client(world.wire), world.clock, world.rng, world.settings)

    async def breaks(self: Reflector[Any]) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Reflector, "run", breaks)
    with pytest.raises(ExceptionGroup) as broken:
        async with asyncio.timeout(WITHIN):
            await controllers.start()
    assert broken.group_contains(ZeroDivisionError)
    await controllers.stop()


async def test_stop_ends_a_start_that_waits(world: World) -> None:
    controllers = ControllerManager(Client(world.wire), world.clock, world.rng, world.settings)
    world.wire.fault = lambda request: Fault.HOLD
    starting = asyncio.create_task(controllers.start())
    await world.eventually(lambda: any("sandboxclaims" in request.path for request in world.wire.requests))
    await controllers.stop()
    with pytest.raises(RuntimeError, match="stopped before everything was known"):
        async with asyncio.timeout(WITHIN):
            await starting


class Counting(NoTracing):
    """Counts the spans that are asked for."""

    spans = 0

    def span(self, name: str, parent: str = "", attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        Counting.spans += 1
        return super().span(name, parent, attributes)


@pytest.mark.parametrize("is_on", [True, False])
async def test_reconcile_costs_no_span_without_tracing(world: World, is_on: bool) -> None:
    """Counts calls instead of time: only enabled tracing wraps a reconcile."""
    await world.controllers.stop()
    Counting.spans = 0
    tracing = Counting() if is_on else None
    world.controllers = ControllerManager(Client(world.wire), world.clock, world.rng, world.settings, tracing=tracing)
    claims = world.controllers.claims
    assert ("trace_reconciles" in getattr(claims.controller.reconcile, "__qualname__", "")) is is_on
    await world.controllers.start()
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    assert (Counting.spans > 0) is is_on
