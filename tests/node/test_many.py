"""Three hundred real sandboxes at once on one machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD
from sandpool.api.labels import FREEZE_WHILE_WARM, WARM_POOL
from sandpool.api.resource import Object
from sandpool.testing.waiting import until
from tests.support.real_node import RealNode, real_node

pytestmark = [pytest.mark.isolation, pytest.mark.long]

COUNT = 300
WITHIN = 240.0
WARM = {"annotations": {FREEZE_WHILE_WARM: "true"}, "labels": {WARM_POOL: "abc"}}


async def everything(rig: RealNode) -> list[Object]:
    found: list[Object] = (await rig.client.list(POD, "default"))["items"]
    return found


async def test_three_hundred_sandboxes_run_at_once(tmp_path: Path) -> None:
    async with real_node(tmp_path) as rig:
        await asyncio.gather(*(rig.create("sleep", "1000", metadata=WARM) for _ in range(COUNT)))

        async def all_ready() -> list[Object]:
            found = await everything(rig)
            return found if all(map(is_ready, found)) else []

        found = await until(all_ready, within=WITHIN)
        assert len({pod["status"]["podIP"] for pod in found}) == COUNT
        assert all(pod["status"]["containerStatuses"][0]["restartCount"] == 0 for pod in found)

        async def all_frozen() -> bool:
            return all(worker.state.frozen for worker in rig.node.agent.workers.values())

        await until(all_frozen, within=WITHIN)
        for pod in found:
            await rig.delete(pod["metadata"]["name"])

        async def none_left() -> bool:
            return not rig.node.agent.workers

        await until(none_left, within=WITHIN)
