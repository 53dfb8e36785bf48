from __future__ import annotations

import asyncio

import pytest

from sandpool.node.simulated import NO_NODE, Fate
from sandpool.service.errors import NotReadyInTime
from sandpool.service.service import Service
from sandpool.testing.world import World


async def test_error_of_a_pool_that_is_late_says_what_the_pool_says(world: World, service: Service) -> None:
    await world.template(name="python")
    await service.pools.create("python", "python", 2)
    pool = await service.pools.wait_ready("python", 2, 30.0)
    assert pool.message
    with pytest.raises(NotReadyInTime) as late:
        await service.pools.wait_ready("python", 3, 0.1)
    said = f'pool "python" had 2 of 3 sandboxes ready after 0.1 s ({pool.message})'
    assert str(late.value) == f"{said}\nFind out more with: sandpool why pool python"


async def test_a_sandbox_that_does_not_start_is_told_long_before_the_end_of_the_wait(
    world: World, service: Service
) -> None:
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.template(name="python")
    await service.pools.create("python", "python", 1)
    told: asyncio.Queue[str] = asyncio.Queue()
    waiting = asyncio.create_task(service.pools.wait_ready("python", 1, 1000.0, failing=told.put_nowait))
    why = await asyncio.wait_for(told.get(), 30.0)
    assert NO_NODE in why
    assert not waiting.done(), "room may be made for it"
    waiting.cancel()
    with pytest.raises(NotReadyInTime) as late:
        await service.pools.wait_ready("python", 1, 0.1)
    assert NO_NODE in late.value.message
