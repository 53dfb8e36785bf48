"""Sandboxes without a waiting client are parked, and occupy no worker while they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM
from sandpool.api.resource import Object, SharedObject
from sandpool.controllers.options import ControllerOptions
from sandpool.engine.background import MAX_DELAY
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.testing.backend import InProcessBackend
from sandpool.testing.clock import ManualClock
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference

WORKERS = 2
KEPT = [f"kept-{number}" for number in range(WORKERS + 1)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world with a claim whose reconcile never ends, a stopped clock, and more warm sandboxes than workers."""
    backend = await InProcessBackend.start(tmp_path)
    world = World(backend, clock=ManualClock(), settings=ControllerOptions(sandbox_workers=WORKERS))
    await world.start()
    await world.pool(len(KEPT), filled=False)
    pool = await world.get(SANDBOX_WARM_POOL, "pool")
    claims: WorkQueue[str] = WorkQueue()
    claims.add("never done with")
    world.controllers.gate.yield_to(claims)
    for name in KEPT:
        await world.sandbox(name, metadata=_kept_warm(pool))
    yield world
    claims.shut_down()
    await world.stop()
    await backend.close()


def _kept_warm(pool: SharedObject) -> Object:
    return {"labels": {LAUNCH_TYPE: LAUNCH_WARM}, "ownerReferences": [owner_reference(pool, controller=True)]}


async def pods(world: World) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in await world.all(POD))


async def test_standalone_sandbox_gets_a_worker_while_pool_members_are_parked(world: World) -> None:
    assert await pods(world) == []
    await world.sandbox("cold")
    assert await pods(world) == ["cold"]


async def test_claimed_member_is_no_longer_parked(world: World) -> None:
    claim = await world.claim("claim")
    await world.patch(SANDBOX, KEPT[-1], {"metadata": {"ownerReferences": [owner_reference(claim, controller=True)]}})
    assert await pods(world) == [KEPT[-1]]


async def test_parked_members_get_their_pods_after_the_patience(world: World) -> None:
    await world.wait(MAX_DELAY)

    async def all_have_pods() -> bool:
        return await pods(world) == KEPT

    await world.until(all_have_pods)
