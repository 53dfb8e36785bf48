"""A warm claim: two serial writes until it is Ready, and what it costs in all.

The embedded API stores the annotations with the Ready status: three writes and an event. Behind kube-apiserver (and
over HTTP) annotations are a write of their own: four writes. In a burst it follows in the background, with all
annotations. A claim that comes alone gets its annotations in parallel with the adoption; if it lives for longer than
``FIRST_READY_DELAY``, a fifth write adds the time of its first Ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import (
    CLAIM_FIRST_READY_AT,
    CLIENT_FIRST_REQUESTED_AT,
    CONTROLLER_FIRST_OBSERVED_AT,
    SANDBOX_NAME,
    WEBHOOK_FIRST_OBSERVED_AT,
)
from sandpool.api.metrics import (
    CLAIM_CONTROLLER_STARTUP_LATENCY,
    CLAIM_STARTUP_LATENCY,
    CLIENT_CLAIM_STARTUP_LATENCY,
)
from sandpool.api.resource import SharedObject
from sandpool.api.views import parse_time
from sandpool.controllers.claim.reporter import precise
from sandpool.controllers.manager import ControllerManager
from sandpool.controllers.options import FIRST_READY_DELAY
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.testing.backend import Backend
from sandpool.testing.clock import ManualClock
from sandpool.testing.world import World
from tests.support.backends import new_namespace, reaches_kinds_in_memory
from tests.support.costs import Costs, told

ROUND_TRIP = 1.0  # seconds on the world's clock


async def test_claim_costs_two_sequential_writes_and_no_read_until_ready(world: World, backend: Backend) -> None:
    await world.template()
    await world.pool(3)
    costs = Costs(world)

    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]

    until_ready = []
    for each in costs.about("mine", box):
        # Another controller updates the pod meanwhile; the claim does not wait for it, see the round trips below.
        if each.resource != "pods":
            until_ready.append(str(each))
        if str(each) == "patch sandboxclaims/status":
            break
    beside = [] if reaches_kinds_in_memory(backend) else ["patch sandboxclaims"]
    assert sorted(until_ready[:-1]) == [*beside, "patch sandboxes"]
    assert costs.reads() == []
    assert costs.refused() == []


async def test_claim_costs_four_writes_and_one_event_in_total(world: World, backend: Backend) -> None:
    """Three on the embedded API. A claim that lives for long costs a fifth where metadata is a write of its own."""
    await world.template()
    await world.pool(3)
    costs = Costs(world)

    def written() -> list[str]:
        return told([each for each in costs.about("mine", box) if each.resource != "events"])

    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]
    await world.wait(FIRST_READY_DELAY - 1)
    separately = [] if reaches_kinds_in_memory(backend) else ["patch sandboxclaims"]
    assert written() == ["patch pods", *separately, "patch sandboxclaims/status", "patch sandboxes"]
    assert told(costs.events()) == ["create events"]

    await world.wait(3600)
    assert written() == ["patch pods", *separately * 2, "patch sandboxclaims/status", "patch sandboxes"]
    assert told(costs.events()) == ["create events"]
    assert costs.claim_reconciles["mine"] <= 2
    assert costs.sandbox_reconciles[box] <= 2
    assert costs.reads() == []
    assert costs.refused() == []


async def test_claim_that_is_deleted_soon_costs_no_further_write(world: World, backend: Backend) -> None:
    await world.template()
    await world.pool(3)
    costs = Costs(world)

    await world.claim("mine")
    box = (await world.served(1))["mine"]["metadata"]["name"]
    await world.wait(FIRST_READY_DELAY / 2)
    await world.delete(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX_CLAIM, "mine")
    await world.wait(3600)

    writes = [each for each in costs.about("mine", box) if each.resource != "events"]
    separately = [] if reaches_kinds_in_memory(backend) else ["patch sandboxclaims"]
    assert told(writes) == ["patch pods", *separately, "patch sandboxclaims/status", "patch sandboxes"]
    assert told(costs.events()) == ["create events"]
    assert costs.refused() == ["users: get sandboxclaims 404"], "the test's own"
    ((labels, counts, _),) = world.controllers.metrics.histogram(CLAIM_CONTROLLER_STARTUP_LATENCY).copy().series
    assert (labels, sum(counts)) == (("warm", "python"), 1), "it is measured without its last annotation"


class Distant:
    """A transport whose requests take a second there and back, on the world's clock. Watch events arrive at once."""

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
    """A world whose controllers have a slow connection to the API after their restart."""

    far = False

    def new_controllers(self) -> ControllerManager:
        controllers = super().new_controllers()
        if not self.far:
            return controllers
        distant = ControllerManager(Client(Distant(self.wire, self.clock)), self.clock, self.rng, self.settings)
        for reflector, near in zip(distant.informers.reflectors, controllers.informers.reflectors, strict=True):
            reflector.client, reflector.clock = near.client, near.clock
        limits = distant.informers.namespaces
        limits.client, limits.clock = controllers.informers.namespaces.client, controllers.informers.namespaces.clock
        return distant


@pytest_asyncio.fixture(loop_scope="session")
async def distant(backend: Backend) -> AsyncIterator[DistantWorld]:
    world = DistantWorld(backend, await new_namespace(backend), clock=ManualClock(datetime.now(UTC)))
    await world.start()
    await world.settle()
    yield world
    await world.stop()


async def test_claim_is_ready_after_two_round_trips(distant: DistantWorld) -> None:
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


@pytest.mark.parametrize(("launch", "replicas"), [("warm", 3), ("cold", 0)])
async def test_startup_latency_includes_the_writes(distant: DistantWorld, launch: str, replicas: int) -> None:
    """All three histograms end when clients can see Ready: they show exactly the time that a client waits for."""
    world = distant
    await world.template()
    await world.pool(replicas)
    world.far = True
    await world.restart()
    await world.wait(60)

    before = world.clock.now()
    annotations = {
        WEBHOOK_FIRST_OBSERVED_AT: precise(before - timedelta(seconds=5)),
        CLIENT_FIRST_REQUESTED_AT: precise(before - timedelta(seconds=7)),
    }
    await world.claim("mine", metadata={"annotations": annotations})
    while not is_ready(await world.get(SANDBOX_CLAIM, "mine")):
        await world.wait(ROUND_TRIP / 4)
    latency = (world.clock.now() - before).total_seconds()
    await world.wait(FIRST_READY_DELAY + 10)
    claim = await world.get(SANDBOX_CLAIM, "mine")

    # Cold: the sandbox, its pod, its status and the claim's status, one after the other.
    assert latency == pytest.approx((2 if launch == "warm" else 4) * ROUND_TRIP)
    for metric, earlier in (
        (CLAIM_CONTROLLER_STARTUP_LATENCY, 0.0),
        (CLAIM_STARTUP_LATENCY, 5.0),
        (CLIENT_CLAIM_STARTUP_LATENCY, 7.0),
    ):
        ((labels, counts, total),) = world.controllers.metrics.histogram(metric).copy().series
        assert (labels, sum(counts)) == ((launch, "python"), 1)
        assert total == pytest.approx((latency + earlier) * 1000), metric.name
    ready_at = parse_time(claim["metadata"]["annotations"][CLAIM_FIRST_READY_AT])
    assert ready_at is not None
    # In one commit with the status the annotation has the time of the request, otherwise the time of its answer.
    last = ROUND_TRIP if Client(world.wire).stores_metadata_with_status else 0.0
    assert (ready_at - before).total_seconds() == pytest.approx(latency - last)


@pytest.mark.parametrize("replicas", [3, 0], ids=["warm", "cold"])
async def test_claim_seen_ready_has_its_annotations(world: World, replicas: int) -> None:
    """In every version of the claim that is Ready, not only in the last one."""
    await world.template()
    await world.pool(replicas)
    seen: list[SharedObject] = []

    async def watch() -> None:
        async for event in world.client.watch(SANDBOX_CLAIM, world.namespace):
            if event.type != "BOOKMARK" and is_ready(event.object):
                seen.append(event.object)  # noqa: PERF401 - it is read before the watch ends

    watching = asyncio.create_task(watch())
    try:
        await world.claim("mine")
        await world.served(1)
        await world.until(lambda: _is_true(seen))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    for each in seen:
        annotations = each["metadata"].get("annotations") or {}
        assert CONTROLLER_FIRST_OBSERVED_AT in annotations
        assert replicas == 0 or annotations[SANDBOX_NAME] == each["status"]["sandbox"]["name"]


async def _is_true(value: object) -> bool:
    return bool(value)
