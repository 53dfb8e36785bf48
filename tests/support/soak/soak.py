"""Many people for a while, first with everything being killed around them, then in peace.

What is there before anybody comes must be all that is there when they have gone, in the API and on the machine.
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
from tests.support.soak.sandpool_process import Town
from tests.support.soak.user import NAMESPACE, PLACES, Person

_log = logging.getLogger(__name__)

PEOPLE: Final = 5
REPLICAS: Final = 2
_REST: Final = 180.0
# The share of the time in which nothing is killed, at the end.
_PEACE: Final = 0.25
_PAUSE: Final = (3.0, 12.0)  # seconds between kills
_LAUNCHERS: Final = 0.3  # how often it is only the launcher


async def soak(directory: Path, seed: int, seconds: float) -> dict[str, int]:
    """How often what was done. Raises ``Broken``."""
    rng = Random(seed)
    town = Town(directory)
    await town.start()
    deeds: dict[str, int] = {}
    try:
        await _settle(town)
        before = await _at_rest(town, None)
        await _busy(town, rng, seconds * (1 - _PEACE), deeds, kills=True)
        await _at_rest(town, before)
        # Somebody who was never here has opened nothing yet.
        await _busy(town, rng, seconds * _PEACE / 2, deeds, kills=False)
        await _at_rest(town, before)
        open_before = town.descriptors()
        await _busy(town, rng, seconds * _PEACE / 2, deeds, kills=False)
        await _at_rest(town, before)
        await _no_more_than(town, open_before)
        deeds["kill"] = town.kills
    finally:
        await town.stop()
    return deeds


async def _settle(town: Town) -> None:
    """Pools of sandboxes, with and without a disk."""
    size = {"requests": {"storage": "1Mi"}}
    disk = {"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": size}}
    for pool in PLACES:
        probe = {"httpGet": {"port": 8888, "path": "/"}, "periodSeconds": 1}
        container: Object = {"name": "main", "image": IMAGE, "readinessProbe": probe}
        spec: Object = {"podTemplate": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}}
        if pool == "disk":
            container["volumeMounts"] = [{"name": "work", "mountPath": PLACES[pool]}]
            spec["volumeClaimTemplates"] = [disk]
        await town.client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, pool, spec=spec), NAMESPACE)
        wanted = {"replicas": REPLICAS, "sandboxTemplateRef": {"name": pool}}
        await town.client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, pool, spec=wanted), NAMESPACE)


async def _busy(town: Town, rng: Random, seconds: float, deeds: dict[str, int], *, kills: bool) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    ringing = loop.call_later(seconds, over.set)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(PEOPLE):
                name = f"p{rng.randrange(1 << 24):06x}-{number}"
                person = Person(town, name, Random(rng.random()), over, deeds)
                group.create_task(person.live(), name=name)
            if kills:
                group.create_task(_kill(town, Random(rng.random()), over), name="killer")
    finally:
        ringing.cancel()


async def _kill(town: Town, rng: Random, over: asyncio.Event) -> None:
    while True:
        try:
            async with asyncio.timeout(rng.uniform(*_PAUSE)):
                await over.wait()
            return
        except TimeoutError:
            if rng.random() < _LAUNCHERS:
                await town.kill_launcher()
            else:
                await town.kill()


async def _at_rest(town: Town, expected: Counter[str] | None) -> Counter[str]:
    """Once the pools are full and nothing changes any more: what there is. Raises ``Broken`` if that is not what is
    expected."""
    found: Counter[str] = Counter()
    try:
        async with asyncio.timeout(_REST):
            while True:
                before, found = found, await town.count()
                ready = await _is_full(town)
                if ready and (found == expected if expected is not None else found == before):
                    return found
                await asyncio.sleep(1.0)
    except TimeoutError:
        wanted = expected or Counter()
        raise Broken(f"it does not come to rest: too many {found - wanted}, missing {wanted - found}") from None


async def _is_full(town: Town) -> bool:
    pools = await town.steadily(lambda client: client.list(SANDBOX_WARM_POOL, NAMESPACE))
    statuses = [pool.get("status") or {} for pool in pools["items"]]
    return all((status.get("readyReplicas"), status.get("replicas")) == (REPLICAS, REPLICAS) for status in statuses)


async def _no_more_than(town: Town, descriptors: int) -> None:
    """Connections to sandboxes that were kept for another request are closed after a while."""
    try:
        async with asyncio.timeout(_REST):
            while town.descriptors() > descriptors:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(1.0)
    except TimeoutError:
        raise Broken(f"{town.descriptors()} descriptors are open where there were {descriptors}") from None
