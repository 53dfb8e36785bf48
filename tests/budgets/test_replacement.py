"""A replacement sandbox, from its creation until it is ready."""

from __future__ import annotations

from sandpool.node.simulated import StartupStage
from sandpool.testing.world import World
from tests.support.costs import Costs, told


async def test_replacement_costs_three_writes_and_three_reconciles(world: World) -> None:
    await world.template()
    await world.pool(2)
    world.node.delays = dict.fromkeys(StartupStage, 0.5)
    members = {box["metadata"]["name"] for box in await world.members()}
    costs = Costs(world)

    await world.claim("mine")
    await world.wait(10)

    (new,) = {box["metadata"]["name"] for box in await world.filled(2)} - members
    reported = [each for each in costs.all("node") if each.name == new]
    assert len(reported) == len(StartupStage) == 6
    # kube-apiserver does not log the name of a sandbox that is created, so creations are counted.
    created = [each for each in costs.all() if each.verb == "create" and each.resource != "events"]
    assert told(created) == ["create pods", "create sandboxes"]
    patched = [each for each in costs.about(new) if each.verb != "create"]
    assert told(patched) == ["patch sandboxes/status"]
    assert costs.sandbox_reconciles[new] <= 3
    assert costs.reads() == []
    assert costs.refused() == []
