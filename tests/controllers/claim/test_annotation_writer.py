"""Annotations of a claim are written once, and on the right claim."""

from __future__ import annotations

import asyncio
from typing import Any

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import CLAIM_FIRST_READY_AT, SANDBOX_NAME
from sandpool.api.resource import SharedObject
from sandpool.kube.errors import Conflict
from sandpool.kube.transport import Request
from sandpool.testing.waiting import until
from sandpool.testing.world import NAMESPACE, World


def is_note(request: Request) -> bool:
    """Whether a request writes the annotations after the status; those of the adoption have no time of the first
    Ready."""
    if request.method != "PATCH" or not request.path.endswith("/sandboxclaims/mine"):
        return False
    return CLAIM_FIRST_READY_AT in request.body["metadata"].get("annotations", {})


async def separate_writes(world: World) -> None:
    """Restart the controllers so that they write metadata and status separately, as behind kube-apiserver."""
    world.wire.stores_metadata_with_status = False
    await world.restart()


async def noted(world: World) -> SharedObject:
    async def claim() -> SharedObject | None:
        found = await world.client.get(SANDBOX_CLAIM, "mine", NAMESPACE)
        return found if CLAIM_FIRST_READY_AT in found["metadata"].get("annotations", {}) else None

    found = await until(claim)
    assert found is not None
    return found


async def test_recreated_claim_gets_no_annotation_of_its_predecessor(world: World) -> None:
    await separate_writes(world)
    await world.template()
    await world.pool(3)
    send = world.wire.transport.request
    held: list[Request] = []
    answered: list[Exception | None] = []
    let_go = asyncio.Event()

    async def late(request: Request) -> Any:
        """The first note arrives when there is another claim of the name."""
        if is_note(request) and not held:
            held.append(request)
            await let_go.wait()
            try:
                answer = await send(request)
            except Exception as error:
                answered.append(error)
                raise
            answered.append(None)
            return answer
        return await send(request)

    world.wire.transport.request = late  # type: ignore[method-assign]
    await world.claim("mine")
    first = (await world.served(1))["mine"]["metadata"]["name"]
    await world.eventually(lambda: held)

    await world.client.delete(SANDBOX_CLAIM, "mine", NAMESPACE)
    await world.claim("mine")
    second = (await world.served(1))["mine"]["metadata"]["name"]
    let_go.set()
    found = await noted(world)

    assert first != second
    assert found["metadata"]["annotations"][SANDBOX_NAME] == second
    assert answered[0] is not None, "the old note was refused"
    await world.controllers.claims.annotations.queue.settled()
    assert world.controllers.claims.annotations.failures == 0


async def test_recreated_claim_is_annotated_while_the_write_of_its_predecessor_is_pending(world: World) -> None:
    """The answer to the old one's status comes late, so its note is put when there is another claim already."""
    await separate_writes(world)
    await world.template()
    await world.pool(3)
    send = world.wire.transport.request
    answered, noted_on = asyncio.Event(), asyncio.Event()
    held: list[Request] = []
    annotation_patch: list[Request] = []

    async def late(request: Request) -> Any:
        if request.method == "PATCH" and request.path.endswith("/sandboxclaims/mine/status") and not held:
            held.append(request)
            answer = await send(request)
            await answered.wait()
            return answer
        if is_note(request):
            annotation_patch.append(request)
            if len(annotation_patch) == 1:
                await noted_on.wait()
        return await send(request)

    world.wire.transport.request = late  # type: ignore[method-assign]
    await world.claim("mine")
    await world.eventually(lambda: held)
    await world.client.delete(SANDBOX_CLAIM, "mine", NAMESPACE)
    await world.claim("mine")
    answered.set()
    await world.served(1)
    noted_on.set()
    await noted(world)


async def test_annotation_write_that_conflicts_is_retried(world: World) -> None:
    """The answer is the same as that to a note about another claim."""
    await separate_writes(world)
    refused: list[Request] = []

    def refuse(request: Request) -> Exception | None:
        if not is_note(request) or refused:
            return None
        refused.append(request)
        return Conflict("the object has been modified")

    await world.template()
    await world.pool(1)
    world.wire.fault = refuse
    await world.claim("mine")
    await noted(world)
    assert len(refused) == 1
