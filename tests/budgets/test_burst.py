"""Bursts of claims: each costs what one costs, nothing is refused, and pools do not chatter about it.

The scenario is burst-300x5: five bursts of 300 claims, a pool of 600. It runs whole on the embedded API in
``make test-long``, and in every home with a tenth of the claims; behind kube-apiserver 1,500 claims take minutes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM
from sandpool.kube.transport import Request
from sandpool.testing.costs import Costs
from sandpool.testing.home import Home
from sandpool.testing.objects import new
from sandpool.testing.world import World

BURSTS = 5


async def make(world: World, names: list[str]) -> None:
    """Claims all at once; nobody waits until the world has settled."""
    claims = [new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}}) for name in names]
    await asyncio.gather(*(world.client.create(SANDBOX_CLAIM, claim, world.namespace) for claim in claims))


async def bursts(world: World, size: int) -> None:
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
    assert asked == dict.fromkeys(
        [
            "patch sandboxes",
            "patch sandboxclaims/status",
            "patch sandboxclaims",
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


async def test_burst_30x5_costs_per_claim_what_one_claim_costs(world: World) -> None:
    await bursts(world, 30)


@pytest.mark.long
async def test_burst_300x5_costs_per_claim_what_one_claim_costs(world: World, home: Home) -> None:
    if home.name == "kubernetes":
        pytest.skip("takes too long; a tenth of it runs there")
    await bursts(world, 300)


async def test_in_a_burst_of_300_a_pool_writes_its_status_twice_a_second(world: World, home: Home) -> None:
    """The claims come in the course of three seconds; over a network a tenth of them, as often."""
    each_time = 30 if home.name == "inprocess" else 3
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
