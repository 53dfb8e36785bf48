"""Metrics count every claim once, whatever happens to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandpool.api import metrics as known
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import EVENT, POD, SANDBOX_CLAIM
from sandpool.api.labels import CLAIM_FIRST_READY_AT, CLIENT_FIRST_REQUESTED_AT, WEBHOOK_FIRST_OBSERVED_AT
from sandpool.api.resource import Object
from sandpool.controllers.options import ClaimOptions
from sandpool.kube.client import MergePatch
from sandpool.kube.transport import Request
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from sandpool.testing.world import NAMESPACE, World

CLAIMS = 6
BEFORE = "2020-01-01T00:00:00Z"
HISTOGRAMS = (
    known.CLAIM_STARTUP_LATENCY,
    known.CLAIM_CONTROLLER_STARTUP_LATENCY,
    known.CLIENT_CLAIM_STARTUP_LATENCY,
    known.CREATION_LATENCY,
)


def counted(world: World) -> dict[str, float]:
    """How much there is in each metric about claims, all series together."""
    metrics = world.controllers.metrics
    found = {
        metric.name: float(sum(sum(counts) for _, counts, _ in metrics.histogram(metric).copy().series))
        for metric in HISTOGRAMS
    }
    total = metrics.counter(known.CLAIM_CREATIONS).copy().samples
    return {**found, known.CLAIM_CREATIONS.name: sum(value for _, value in total)}


async def claim_with_times(world: World, name: str) -> None:
    times = {CLIENT_FIRST_REQUESTED_AT: BEFORE, WEBHOOK_FIRST_OBSERVED_AT: BEFORE}
    body = new(SANDBOX_CLAIM, name, metadata={"annotations": times}, spec={"warmPoolRef": {"name": "pool"}})
    await world.client.create(SANDBOX_CLAIM, body, NAMESPACE)


async def report(world: World, pod: str, status: str) -> None:
    """Report the readiness of a pod as a kubelet does."""
    conditions = (await world.client.get(POD, pod, NAMESPACE))["status"]["conditions"]
    told = [{**each, "status": status} if each["type"] == "Ready" else each for each in conditions]
    await world.client.patch(POD, pod, MergePatch({"status": {"conditions": told}}), NAMESPACE, subresource="status")

    async def heard() -> bool:
        return all(is_ready(each) is (status == "True") for each in await world.all(SANDBOX_CLAIM) if uses(each, pod))

    await until(heard)


def uses(claim: Object, sandbox: str) -> bool:
    return bool(claim["status"]["sandbox"]["name"] == sandbox)


async def noted(world: World) -> None:
    async def all_are() -> bool:
        claims = await world.all(SANDBOX_CLAIM)
        return all(CLAIM_FIRST_READY_AT in each["metadata"]["annotations"] for each in claims)

    await until(all_are)


async def test_r40_flapping_claims_are_counted_once_across_a_restart(world: World) -> None:
    await world.template()
    await world.pool(CLAIMS // 2)
    await asyncio.gather(*(claim_with_times(world, f"claim-{number}") for number in range(CLAIMS)))
    served = await world.served(CLAIMS)
    await noted(world)
    once = dict.fromkeys((*(each.name for each in HISTOGRAMS), known.CLAIM_CREATIONS.name), float(CLAIMS))
    assert counted(world) == once

    flapping = served["claim-0"]["metadata"]["name"]
    for _ in range(3):
        await report(world, flapping, "False")
        await report(world, flapping, "True")
    assert counted(world) == once

    await world.restart()
    for _ in range(2):
        await report(world, flapping, "False")
        await report(world, flapping, "True")
    assert counted(world) == dict.fromkeys(once, 0.0), "a successor counts what is new to the world, not to itself"


async def test_r40_claims_are_counted_by_launch_type(world: World) -> None:
    await world.template()
    await world.pool(2)
    await world.pool(0, name="empty", filled=False)
    await world.claim("warm")
    await world.claim("cold", warmPoolRef={"name": "empty"})
    await world.served(2)
    assert dict(world.controllers.metrics.counter(known.CLAIM_CREATIONS).copy().samples) == {
        (NAMESPACE, "python", "warm", "pool", "ready", "unknown"): 1.0,
        (NAMESPACE, "python", "cold", "empty", "not_ready", "unknown"): 1.0,
    }


async def test_r40_lost_response_is_counted_once(world: World) -> None:
    world.wire.stores_metadata_with_status = False
    await world.restart(settings=replace(world.settings, claim=ClaimOptions(first_ready_delay=0.0)))
    await world.template()
    await world.pool(2)
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        if request.method == "PATCH" and request.path.endswith(("/mine/status", "/mine")) and len(lost) < 3:
            lost.append(request)
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await claim_with_times(world, "mine")
    await world.served(1)
    await noted(world)
    found = counted(world)
    assert len(lost) >= 2
    assert all(value <= 1 for value in found.values()), f"who is not sure says nothing rather than twice: {found}"


@pytest.mark.parametrize("replicas", [2, 0], ids=["warm", "cold"])
async def test_r40_adoption_without_a_response_is_counted_and_reported_once(world: World, replicas: int) -> None:
    await world.template()
    await world.pool(replicas)
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        """The answer to what makes a sandbox the claim's."""
        owners = ((request.body or {}).get("metadata") or {}).get("ownerReferences") or [{}]
        if owners[0].get("kind") == "SandboxClaim" and not lost:
            lost.append(request)
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await claim_with_times(world, "mine")
    await world.served(1)
    await noted(world)
    assert lost
    assert sum(value for _, value in world.controllers.metrics.counter(known.CLAIM_CREATIONS).copy().samples) == 1

    async def told() -> list[str]:
        events = (await world.client.list(EVENT, NAMESPACE))["items"]
        return [each["reason"] for each in events if each["regarding"]["name"] == "mine"]

    await until(told)
    assert await told() == ["SandboxAdopted" if replicas else "SandboxProvisioned"]
