"""A claim keeps only the sandbox that its status names."""

from __future__ import annotations

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import CLAIM_UID
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import Conflict
from sandpool.kube.transport import Request
from sandpool.testing.waiting import until
from sandpool.testing.world import NAMESPACE, World, owner_of
from tests.support.api_objects import owner_reference


async def second_sandbox(world: World) -> tuple[str, str]:
    """Give a claim that is served another sandbox, as what a dead process has sent would; the names of both."""
    await world.template()
    await world.pool(2)
    claim = await world.claim("mine")
    kept = (await world.served(1))["mine"]["metadata"]["name"]
    member = next(box["metadata"]["name"] for box in await world.filled(2))
    owners = [owner_reference(claim, controller=True, block=True)]
    body = {"metadata": {"ownerReferences": owners, "labels": {CLAIM_UID: claim["metadata"]["uid"]}}}
    await world.client.patch(SANDBOX, member, MergePatch(body), NAMESPACE)
    return kept, member


async def only(world: World, kept: str) -> bool:
    return [box["metadata"]["name"] for box in await world.all(SANDBOX) if owner_of(box)[0] == "SandboxClaim"] == [kept]


async def test_claim_keeps_the_sandbox_named_in_its_status(world: World) -> None:
    kept, member = await second_sandbox(world)
    await until(lambda: only(world, kept))

    async def told() -> bool:
        return any(member in event["note"] and kept in event["note"] for event in await world.events("mine"))

    await until(told)


async def test_duplicate_that_changed_is_deleted_on_retry(world: World) -> None:
    refused: list[Request] = []

    def refuse(request: Request) -> Exception | None:
        if request.method == "DELETE" and "/sandboxes/" in request.path and not refused:
            refused.append(request)
            return Conflict("it has changed")
        return None

    world.wire.fault = refuse
    kept, member = await second_sandbox(world)
    await until(lambda: only(world, kept))
    assert refused[0].path.endswith(f"/{member}")
    asked = [each for each in world.wire.requests if each.method == "GET" and each.path.endswith(f"/{member}")]
    assert asked, "what it is like now is asked"
