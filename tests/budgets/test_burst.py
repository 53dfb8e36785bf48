"""Bursts of claims: each costs what one costs, nothing is refused, and pools do not chatter about it.

The scenario is burst-300x5: five bursts of 300 claims, a pool of 600. It runs whole and in real time on the embedded
API in ``make test-long``, and in every home with a tenth of the claims, on a clock that stands still; behind
kube-apiserver 1,500 claims would take minutes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM
from sandpool.bench.accounting import CONTROLLERS
from sandpool.bench.claims import measure
from sandpool.bench.environments import NAMES, place
from sandpool.bench.scenarios import SCENARIOS
from sandpool.engine.clock import SystemClock
from sandpool.kube.transport import Request
from sandpool.testing.backend import Backend
from sandpool.testing.objects import new
from sandpool.testing.world import World
from tests.support.backends import reaches_kinds_in_memory
from tests.support.costs import Costs

BURSTS = 5


async def make(world: World, names: list[str]) -> None:
    """Create claims concurrently, without waiting for quiescence."""
    claims = [new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}}) for name in names]
    await asyncio.gather(*(world.client.create(SANDBOX_CLAIM, claim, world.namespace) for claim in claims))


async def bursts(world: World, size: int, *, in_memory: bool) -> None:
    total = BURSTS * size
    await world.template()
    await world.pool(2 * size)
    costs = Costs(world)

    for burst in range(BURSTS):
        await make(world, [f"claim-{burst}-{number}" for number in range(size)])
        if burst % 2:
            await world.filled(2 * size)  # the pool lasts for two bursts, and not for a third
    served = await world.served(total)
    await world.filled(2 * size)
    await world.wait(60)

    assert len({box["metadata"]["uid"] for box in served.values()}) == total
    assert Counter(box["metadata"]["labels"][LAUNCH_TYPE] for box in served.values()) == {LAUNCH_WARM: total}
    asked = Counter(str(each) for each in costs.all())
    assert asked.pop("create events") <= total
    assert asked.pop("patch sandboxwarmpools/status") <= 10
    annotations = asked.pop("patch sandboxclaims", 0)
    # The first claims of a burst may come alone, and then take two writes.
    assert annotations == 0 if in_memory else total <= annotations <= total + 2 * BURSTS
    assert asked == dict.fromkeys(
        [
            "patch sandboxes",
            "patch sandboxclaims/status",
            "patch pods",
            "create sandboxes",
            "create pods",
            "patch sandboxes/status",
        ],
        total,
    )
    assert costs.refused() == [], "no conflict, and nothing that was not there"
    assert max(costs.claim_reconciles.values()) <= 2
    taken = {box["metadata"]["name"] for box in served.values()}
    assert max(costs.sandbox_reconciles.values()) <= 5, "three of a replacement, and two when it is claimed in its turn"
    assert sum(costs.sandbox_reconciles.values()) <= 2 * len(taken) + 3 * total


async def test_burst_30x5_costs_per_claim_as_much_as_one_claim(world: World, backend: Backend) -> None:
    await bursts(world, 30, in_memory=reaches_kinds_in_memory(backend))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
async def test_burst_300x5_costs_per_claim_as_much_as_one_claim(name: str, tmp_path: Path) -> None:
    """The bursts follow each other at once, so the pool lasts for two of them and may then be empty for a while."""
    clock, scenario, told = SystemClock(), SCENARIOS["bursts"], list[str]()
    async with place(name, tmp_path, clock, Random(1)) as found:
        report = await measure(found, scenario, clock, Random(1), told.append)
        made = [] if found.audit is None else [each for each in found.audit.requests() if each.resource == "sandboxes"]
    history = [f"{each} {each.name}: {each.code}" for each in made if each.verb in ("create", "delete")]
    total, warm = scenario.load.claims, report.warm

    assert len(report.outcome.latencies) == total == 1500
    assert warm + report.cold == total
    assert warm >= scenario.pool == 600
    request_counts = report.request_counts
    assert (request_counts.conflicts, request_counts.missing) == (Counter(), Counter())
    asked = Counter({what: count for (who, what), count in request_counts.requests.items() if who == CONTROLLERS})
    assert asked["patch sandboxes"] == warm
    assert asked["patch pods"] <= warm
    assert asked["patch sandboxclaims"] == 0, "the controllers of both are in the process of the API"
    assert asked["create events"] <= total
    assert asked["create sandboxes"] == asked["create pods"] == total, "\n".join(history)
    assert asked["patch sandboxes/status"] == total
    # A claim that has to wait for a sandbox of its own says so first.
    assert warm <= asked["patch sandboxclaims/status"] <= warm + 2 * report.cold


async def test_pool_writes_its_status_at_most_twice_a_second_in_a_burst_of_300(world: World, backend: Backend) -> None:
    """The claims come in the course of three seconds; over a network a tenth of them, as often."""
    each_time = 30 if backend.name == "inprocess" else 3
    await world.template()
    await world.pool(6 * each_time)
    await world.wait(5)
    written: list[float] = []

    def note(request: Request) -> None:
        if request.method == "PATCH" and request.path.endswith("/sandboxwarmpools/pool/status"):
            written.append(world.clock.monotonic())

    world.wire.fault = note
    for moment in range(10):
        await make(world, [f"claim-{moment}-{number}" for number in range(each_time)])
        await world.wait(0.3)
    await world.served(10 * each_time)

    assert len(written) >= 3, "it does say something"
    gaps = [after - before for before, after in pairwise(written)]
    assert min(gaps) == pytest.approx(0.5) or min(gaps) > 0.5
