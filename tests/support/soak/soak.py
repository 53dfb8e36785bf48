"""Runs many users for a while, first with kills, then without.

The objects in the API and the resources of the machine must be the same before and after.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from sandpool.api.kinds import SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.testing.objects import new
from tests.support.real_node import IMAGE
from tests.support.soak.command_log import Broken
from tests.support.soak.sandpool_process import SandpoolProcess
from tests.support.soak.user import NAMESPACE, PLACES, SandboxUser

_log = logging.getLogger(__name__)

USERS: Final = 5
REPLICAS: Final = 2
_REST: Final = 180.0
# The share of the time at the end without kills.
_PEACE: Final = 0.25
_PAUSE: Final = (3.0, 12.0)  # seconds between kills
_LAUNCHERS: Final = 0.3  # share of kills that hit only the launcher


async def soak(directory: Path, seed: int, seconds: float) -> dict[str, int]:
    """Return how often each action was done. Raises ``Broken``."""
    rng = Random(seed)
    process = SandpoolProcess(directory)
    await process.start()
    deeds: dict[str, int] = {}
    try:
        await _settle(process)
        before = await _at_rest(process, None)
        await _busy(process, rng, seconds * (1 - _PEACE), deeds, kills=True)
        await _at_rest(process, before)
        # The first user opens connections and files that are kept.
        await _busy(process, rng, seconds * _PEACE / 2, deeds, kills=False)
        await _at_rest(process, before)
        open_before = process.descriptors()
        await _busy(process, rng, seconds * _PEACE / 2, deeds, kills=False)
        await _at_rest(process, before)
        await _no_more_than(process, open_before)
        deeds["kill"] = process.kills
    finally:
        await process.stop()
    return deeds


async def _settle(process: SandpoolProcess) -> None:
    """Create pools of sandboxes, with and without a volume."""
    size = {"requests": {"storage": "1Mi"}}
    disk = {"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": size}}
    for pool in PLACES:
        probe = {"httpGet": {"port": 8888, "path": "/"}, "periodSeconds": 1}
        container: Object = {"name": "main", "image": IMAGE, "readinessProbe": probe}
        spec: Object = {"podTemplate": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}}
        if pool == "disk":
            container["volumeMounts"] = [{"name": "work", "mountPath": PLACES[pool]}]
            spec["volumeClaimTemplates"] = [disk]
        await process.client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, pool, spec=spec), NAMESPACE)
        wanted = {"replicas": REPLICAS, "sandboxTemplateRef": {"name": pool}}
        await process.client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, pool, spec=wanted), NAMESPACE)


async def _busy(process: SandpoolProcess, rng: Random, seconds: float, deeds: dict[str, int], *, kills: bool) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    ringing = loop.call_later(seconds, over.set)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(USERS):
                name = f"p{rng.randrange(1 << 24):06x}-{number}"
                person = SandboxUser(process, name, Random(rng.random()), over, deeds)
                group.create_task(person.live(), name=name)
            if kills:
                group.create_task(_kill(process, Random(rng.random()), over), name="killer")
    finally:
        ringing.cancel()


async def _kill(process: SandpoolProcess, rng: Random, over: asyncio.Event) -> None:
    while True:
        try:
            async with asyncio.timeout(rng.uniform(*_PAUSE)):
                await over.wait()
            return
        except TimeoutError:
            if rng.random() < _LAUNCHERS:
                await process.kill_launcher()
            else:
                await process.kill()


async def _at_rest(process: SandpoolProcess, expected: Counter[str] | None) -> Counter[str]:
    """Wait until the pools are full and nothing changes, and return the counts. Raises ``Broken`` if they are not the
    expected ones."""
    found: Counter[str] = Counter()
    try:
        async with asyncio.timeout(_REST):
            while True:
                before, found = found, await process.count()
                ready = await _is_full(process)
                if ready and (found == expected if expected is not None else found == before):
                    return found
                await asyncio.sleep(1.0)
    except TimeoutError:
        wanted = expected or Counter()
        raise Broken(f"it does not come to rest: too many {found - wanted}, missing {wanted - found}") from None


async def _is_full(process: SandpoolProcess) -> bool:
    pools = await process.steadily(lambda client: client.list(SANDBOX_WARM_POOL, NAMESPACE))
    statuses = [pool.get("status") or {} for pool in pools["items"]]
    return all((status.get("readyReplicas"), status.get("replicas")) == (REPLICAS, REPLICAS) for status in statuses)


async def _no_more_than(process: SandpoolProcess, descriptors: int) -> None:
    """Wait: idle connections to sandboxes are closed after a while."""
    try:
        async with asyncio.timeout(_REST):
            while process.descriptors() > descriptors:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(1.0)
    except TimeoutError:
        raise Broken(f"{process.descriptors()} descriptors are open where there were {descriptors}") from None
