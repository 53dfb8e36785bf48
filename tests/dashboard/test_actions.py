"""What users change: a rollout that the API refuses changes nothing."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.kube.errors import Conflict
from sandpool.service.templates import Template, TemplateChange, Templates
from sandpool.testing.world import World
from tests.dashboard.conftest import Served, Visitor


async def strategy_of(world: World) -> str:
    return str((await world.get(SANDBOX_WARM_POOL, "pool"))["spec"]["updateStrategy"]["type"])


async def rolled_out(world: World) -> str:
    """The path that rolls a template out to a pool, which follows its template as it is claimed."""
    await world.template()
    await world.pool(replicas=1, strategy="OnReplenish")
    return f"/api/pools/{world.namespace}/pool/rollout"


async def test_refused_rollout_does_not_switch_the_strategy(visitor: Visitor, served: Served) -> None:
    path = await rolled_out(served.world)
    generation = (await served.world.get(SANDBOX_WARM_POOL, "pool"))["metadata"]["generation"]
    status, answer = await visitor.call("POST", path, {"cpu": "much", "strategy": "Recreate"})
    assert status == 422, answer
    pool = await served.world.get(SANDBOX_WARM_POOL, "pool")
    assert pool["spec"]["updateStrategy"]["type"] == "OnReplenish"
    assert pool["metadata"]["generation"] == generation  # nor was it switched in between


async def test_rollout_that_fails_late_switches_the_strategy_back(
    visitor: Visitor, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await rolled_out(served.world)
    change = Templates.change

    async def overtaken(self: Templates, name: str, asked: TemplateChange, *, dry_run: bool = False) -> Template:
        if dry_run:
            return await change(self, name, asked, dry_run=True)
        assert await strategy_of(served.world) == "Recreate"
        raise Conflict("another writer was ahead")

    monkeypatch.setattr(Templates, "change", overtaken)
    status, answer = await visitor.call("POST", path, {"image": "example.com/image:2", "strategy": "Recreate"})
    assert (status, "another writer was ahead" in answer["error"]) == (409, True)
    assert await strategy_of(served.world) == "OnReplenish"


async def test_rollout_sets_the_strategy_and_the_template(visitor: Visitor, served: Served) -> None:
    path = await rolled_out(served.world)
    await visitor.does("POST", path, {"image": "example.com/image:2", "strategy": "Recreate"})
    assert await strategy_of(served.world) == "Recreate"
    template = Template.from_object(await served.world.get(SANDBOX_TEMPLATE, "python"))
    assert template.image == "example.com/image:2"
