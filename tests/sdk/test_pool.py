from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.errors import Refused
from sandpool.sdk.pool import covers
from sandpool.service.errors import NameTaken, UnknownName
from sandpool.service.templates import TemplateInUse
from sandpool.testing.world import World


async def test_pool_is_made_scaled_waited_for_used_and_deleted(world: World, client: AsyncClient) -> None:
    template = await client.template("small", image="image:1", cpu="1", memory="64Mi")
    pool = await client.pool("fast", template="small", size=2)
    status = await pool.wait_ready()
    assert (status.desired, status.ready, status.template, status.problem) == (2, 2, "small", "")
    async with pool.sandbox() as sandbox:
        assert sandbox.launch == "warm"
    await pool.scale(1)
    assert (await pool.status()).desired == 1
    assert (await pool.wait_ready(1)).ready >= 1
    with pytest.raises(TemplateInUse, match="fast"):
        await template.delete()
    await pool.delete()
    await template.delete()
    assert await world.all(SANDBOX_WARM_POOL) == []
    assert await world.all(SANDBOX_TEMPLATE) == []


async def test_same_pool_and_template_are_found_again(world: World, client: AsyncClient) -> None:
    for _ in range(2):
        await client.template("small", image="image:1", command=["sh"], port=80, freeze=True)
        await client.pool("fast", template="small", size=1)
    found = await client.template("small")
    assert found.name == "small"
    same = await client.pool("fast")
    assert (await same.status()).desired == 1
    await client.pool("fast", size=3)
    assert (await same.status()).desired == 3


async def test_template_has_times_of_sleep_and_a_policy_for_variables(world: World, client: AsyncClient) -> None:
    for policy in ("Overrides", "Allowed"):
        await client.template(
            policy.lower(),
            image="image:1",
            freeze_after=90,
            suspend_after="2h",
            late_binding=policy == "Allowed",
            env_policy=policy if policy == "Overrides" else None,
        )
        template = await world.get(SANDBOX_TEMPLATE, policy.lower())
        assert template["spec"]["envVarsInjectionPolicy"] == policy
        assert template["spec"]["podTemplate"]["metadata"]["annotations"] == {
            IDLE_FREEZE_AFTER: "90s",
            IDLE_SUSPEND_AFTER: "2h",
        }
    with pytest.raises(NameTaken, match="is different"):  # variables would not be bound late
        await client.template("overrides", image="image:1", late_binding=True, env_policy="Overrides")
    for time in ("soon", -1, float("inf")):
        with pytest.raises(Refused, match="is not a duration"):
            await client.template("other", image="image:1", freeze_after=time)


async def test_different_ones_of_the_same_name_are_not_touched(world: World, client: AsyncClient) -> None:
    await client.template("small", image="image:1")
    await client.template("other", image="image:1")
    await client.pool("fast", template="small", size=1)
    with pytest.raises(NameTaken, match="is different"):
        await client.template("small", image="image:2")
    with pytest.raises(NameTaken, match='with template "small"'):
        await client.pool("fast", template="other", size=5)
    assert (await (await client.pool("fast")).status()).desired == 1
    with pytest.raises(UnknownName, match="no pool"):
        await client.pool("none")
    with pytest.raises(UnknownName, match="no template"):
        await client.template("none")
    with pytest.raises(UnknownName, match="no template"):
        await client.pool("none", template="none")


def test_object_covers_what_is_wanted_of_it() -> None:
    assert covers({"a": [{"b": 1, "c": 2}], "d": 3}, {"a": [{"b": 1}]})
    others: list[Any] = [{"a": [{"b": 2}]}, {"a": []}, {"a": [{"b": 1}, {}]}, {"e": 1}, {"a": {"b": 1}}]
    for wanted in others:
        assert not covers({"a": [{"b": 1, "c": 2}], "d": 3}, wanted)
