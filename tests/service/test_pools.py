from __future__ import annotations

import pytest

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
