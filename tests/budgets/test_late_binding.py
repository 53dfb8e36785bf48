"""A warm claim with variables costs the API as much as one without, and one round trip to its sandbox besides."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_TEMPLATE
from sandpool.api.labels import LATE_BINDING, LAUNCH_TYPE
from sandpool.api.resource import Object
from sandpool.testing.world import World
from tests.support.costs import Costs, told

ENV: dict[str, Any] = {"env": [{"name": "TOKEN", "value": "secret"}]}
SPEC: Object = {
    "podTemplate": {"spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]}},
    "envVarsInjectionPolicy": "Allowed",
}


async def template(world: World) -> None:
    await world.create(SANDBOX_TEMPLATE, "python", metadata={"annotations": {LATE_BINDING: "true"}}, spec=SPEC)


async def cost(world: World, name: str, **spec: Any) -> tuple[list[str], list[str], int]:
    """The requests for one claim, without those for its replacement, its events, and its reconciles."""
    costs = Costs(world)
    await world.claim(name, **spec)
    box = (await world.served(len(await world.all(SANDBOX_CLAIM))))[name]
    assert box["metadata"]["labels"][LAUNCH_TYPE] == "warm"
    await world.wait(3600)
    assert costs.refused() == []
    about = [each for each in costs.about(name, box["metadata"]["name"]) if each.resource != "events"]
    return told(about), told(costs.events()), costs.claim_reconciles[name]


async def test_claim_with_variables_costs_as_many_requests_as_one_without(world: World) -> None:
    await template(world)
    await world.pool(3)
    without = await cost(world, "without")
    asked = len(world.binder.requests)
    assert await cost(world, "with", **ENV) == without
    assert (asked, len(world.binder.requests)) == (0, 1), "one round trip to the sandbox"


async def test_claim_waits_for_one_round_trip_to_its_sandbox(world: World) -> None:
    await template(world)
    await world.pool(3)
    world.binder.round_trip = 1.0
    await world.claim("mine", **ENV)
    await world.wait(0.999)
    assert not is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    await world.wait(0.001)
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))


@pytest.mark.parametrize("count", [10])
async def test_burst_is_bound_side_by_side(world: World, count: int) -> None:
    await template(world)
    await world.pool(count)
    world.binder.round_trip = 1.0
    for number in range(count):
        await world.claim(f"claim-{number}", **ENV)
    await world.wait(1.0)
    assert all(is_ready(each) for each in await world.all(SANDBOX_CLAIM))
    assert len(world.binder.deliveries) == count
