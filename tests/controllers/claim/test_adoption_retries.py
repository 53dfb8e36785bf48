"""Adoption of a sandbox that other clients write at the same time."""

from __future__ import annotations

import asyncio

import pytest

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.warmpool import RECREATE
from sandpool.kube.client import MergePatch
from sandpool.kube.transport import Request
from sandpool.testing.objects import new
from sandpool.testing.world import NAMESPACE, World, owner_of
from tests.support.api_objects import owner_reference


class ConcurrentWriter:
    """Writes a sandbox just before a claim does, so many ``times``."""

    def __init__(self, world: World, times: int, body: dict[str, object]) -> None:
        self.world = world
        self.times = times
        self.body = body
        self.met: list[str] = []  # the sandboxes claims wanted, one for each attempt
        self._request = world.wire.transport.request
        world.wire.transport.request = self.request  # type: ignore[method-assign]

    async def request(self, request: Request) -> object:
        if request.method == "PATCH" and "ownerReferences" in request.body.get("metadata", {}):
            self.met.append(request.path.rsplit("/", 1)[-1])
            if len(self.met) <= self.times:
                # Every write is a different one, else it would be none.
                body = {"metadata": {"annotations": {"example.com/times": str(len(self.met))}, **self.body}}
                await self.world.client.patch(SANDBOX, self.met[-1], MergePatch(body), NAMESPACE)
        return await self._request(request)


@pytest.mark.parametrize("times", [1, 6], ids=["once", "more often than one reconcile retries"])
async def test_adoption_is_retried_with_the_same_sandbox(world: World, times: int) -> None:
    """R3: a conflict never makes a claim try another sandbox."""
    await world.template()
    await world.pool(3)
    writer = ConcurrentWriter(world, times, {})

    await world.claim("mine")
    served = await world.served(1)

    assert writer.met == [served["mine"]["metadata"]["name"]] * (times + 1)


async def test_sandbox_taken_by_another_claim_is_not_retried(world: World) -> None:
    """R2, R4: the loser takes another, and does not keep a name that leads nowhere."""
    await world.template()
    await world.pool(3)
    winner = await world.client.create(
        SANDBOX_CLAIM, new(SANDBOX_CLAIM, "other", spec={"warmPoolRef": {"name": "no"}}), NAMESPACE
    )
    reference = owner_reference(winner, controller=True)
    writer = ConcurrentWriter(world, 1, {"ownerReferences": [reference]})

    await world.claim("mine")
    await world.filled(3)
    served = await world.served(2)

    lost, won = writer.met
    assert served["mine"]["metadata"]["name"] == won != lost
    assert owner_of(served["other"]) == ("SandboxClaim", "other")
    assert served["other"]["metadata"]["name"] == lost


async def test_stale_sandbox_is_not_adopted_on_retry(world: World) -> None:
    """R8: the template changes between the first attempt and the second."""
    await world.template()
    await world.pool(1, strategy=RECREATE)
    writer = ConcurrentWriter(world, 1, {})
    original, served = writer._request, asyncio.Event()

    async def change_template(request: Request) -> object:
        if request.method == "DELETE":
            await served.wait()  # the pool would be first, and it is the claim that is to decide
        if request.method == "GET" and request.path.endswith(f"/{writer.met[0]}"):
            await world.change_template("example.com/image:2")
        return await original(request)

    writer._request = change_template
    await world.claim("mine")
    box = (await world.served(1))["mine"]
    served.set()

    assert box["spec"]["podTemplate"]["spec"]["containers"][0]["image"] == "example.com/image:2"
    assert len(writer.met) == 1, "it was wanted once, and not again"
