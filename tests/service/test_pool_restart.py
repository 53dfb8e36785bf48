"""The restart of a pool: a few sandboxes at a time, and none that a claim has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX
from sandpool.kube.client import Client
from sandpool.node.simulated import Fate
from sandpool.service.pool_restart import replace_idle
from sandpool.service.service import Service
from sandpool.testing.world import World

SIZE = 8


async def filled(world: World, service: Service, size: int = SIZE) -> set[str]:
    """Make a pool of this size; returns the UIDs of its sandboxes."""
    await world.template(name="python")
    await service.pools.create("python", "python", size)
    await service.pools.wait_ready("python", size, 30.0)
    return await uids(world)


async def uids(world: World) -> set[str]:
    return {each["metadata"]["uid"] for each in await world.members()}


async def test_all_idle_sandboxes_are_replaced_and_the_pool_stays_usable(world: World, service: Service) -> None:
    before = await filled(world, service)
    left: list[int] = []
    told: list[tuple[int, int]] = []

    class ObservedClient(Client):
        async def delete(self, *args: Any, **options: Any) -> Any:
            answer = await super().delete(*args, **options)
            left.append(sum(map(is_ready, await world.members())))
            return answer

    observed = ObservedClient(world.client.transport)
    done = await replace_idle(observed, world.namespace, "python", SIZE, lambda *counts: told.append(counts))
    assert done == len(left) == SIZE
    assert min(left) >= SIZE - SIZE // 4
    assert not before & await uids(world)
    assert len(await world.filled(SIZE)) == SIZE
    assert (told[0], told[-1]) == ((0, SIZE), (SIZE, SIZE))


async def test_claimed_sandboxes_stay(world: World, service: Service) -> None:
    await filled(world, service, 2)
    claim = await service.claims.create("python")
    await world.filled(2)
    before = (await service.sandboxes.get(claim.sandbox)).object["metadata"]["uid"]
    assert await service.pools.restart("python") == 2
    assert (await service.sandboxes.get(claim.sandbox)).object["metadata"]["uid"] == before


async def test_a_sandbox_that_is_claimed_at_the_last_moment_stays(world: World, service: Service) -> None:
    """The claim is served between the observation and the deletion, which its new version refuses."""
    await filled(world, service, 1)
    claimed: list[str] = []

    class SlowClient(Client):
        async def delete(self, *args: Any, **options: Any) -> Any:
            if not claimed:
                claimed.append((await service.claims.create("python")).sandbox)
                assert claimed == [args[1]]
            return await super().delete(*args, **options)

    slow = SlowClient(world.client.transport)
    assert await replace_idle(slow, world.namespace, "python", 1, lambda *counts: None) == 1
    assert await world.client.get(SANDBOX, claimed[0], world.namespace)


async def test_sandboxes_that_never_become_ready_end_the_restart(world: World, service: Service) -> None:
    before = await filled(world, service)
    world.node.fate = lambda pod: Fate.HANGING
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await service.pools.restart("python")
    assert len(before & await uids(world)) == SIZE - SIZE // 4


async def test_a_pool_that_is_empty_needs_no_restart(world: World, service: Service) -> None:
    await filled(world, service, 0)
    assert await service.pools.restart("python") == 0
