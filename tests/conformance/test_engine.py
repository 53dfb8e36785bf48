"""Leases and events of the engine have the same meaning on every API."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from sandpool.api.events import claim_expired
from sandpool.api.kinds import CONFIG_MAP, EVENT, LEASE
from sandpool.engine.clock import SystemClock
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.engine.leaderelection import LeaderElector, LeaseTiming
from sandpool.kube.client import Client
from sandpool.testing.objects import new
from sandpool.testing.waiting import until


async def test_released_lease_passes_to_the_next_contender(client: Client, namespace: str) -> None:
    terms = LeaseTiming(duration=4, deadline=3, retry=0.2)
    one, two = (
        LeaderElector(client, "lease", namespace, name, SystemClock(), Random(1), terms=terms)
        for name in ("one", "two")
    )
    leading, followed = asyncio.Event(), asyncio.Event()

    async def is_renewed() -> bool:
        spec = (await client.get(LEASE, "lease", namespace))["spec"]
        return bool(spec["renewTime"] > spec["acquireTime"])

    async def lead() -> None:
        leading.set()
        await followed.wait()
        await until(is_renewed)

    async def follow() -> None:
        assert not one.held
        assert two.held
        spec = (await client.get(LEASE, "lease", namespace))["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("two", 4, 1)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        first = group.create_task(one.lead(lead))
        await leading.wait()
        second = group.create_task(two.lead(follow))
        followed.set()
        await first
        released = asyncio.get_running_loop().time()
        await second
        assert asyncio.get_running_loop().time() - released < 2
    spec = (await client.get(LEASE, "lease", namespace))["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 1)


async def test_repeated_events_are_counted(client: Client, namespace: str) -> None:
    regarding = ObjectReference.to(await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace))
    recorder = EventRecorder(client, SystemClock(), "host", spacing=0.1)
    recorder.start()

    async def is_written(count: int) -> bool:
        return recorder.written >= count

    for count in (1, 2, 3):
        recorder.event(regarding, claim_expired())
        await until(partial(is_written, count))
    await recorder.stop()
    assert recorder.dropped == 0
    found = await client.list(EVENT, namespace, field_selector="regarding.name=a")
    [event] = found["items"]
    assert event["series"]["count"] == 3
    assert (event["reason"], event["note"], event["type"]) == ("ClaimExpired", "Claim expired", "Normal")
    assert event["regarding"]["uid"] == regarding.uid
