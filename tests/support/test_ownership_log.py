"""The ownership log detects a sandbox with two owners although the final state is correct."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod_template
from tests.support.api_objects import owner_reference
from tests.support.ownership_log import OwnershipLog


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server.client()
    await server.stop()


async def claim(client: Client, name: str) -> SharedObject:
    return await client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "p"}}), "default")


async def give(client: Client, box: str, owner: SharedObject) -> None:
    body = {"metadata": {"ownerReferences": [owner_reference(owner, controller=True)]}}
    await client.patch(SANDBOX, box, MergePatch(body), "default")


async def told(client: Client, name: str, box: str) -> None:
    body = {"status": {"sandbox": {"name": box}}}
    await client.patch(SANDBOX_CLAIM, name, MergePatch(body), "default", subresource="status")


@pytest.mark.parametrize("hands", [("mine",), ("mine", "other"), ("mine", "other", "mine")])
async def test_each_change_of_owner_is_recorded(client: Client, hands: tuple[str, ...]) -> None:
    box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "default")
    claims = {name: await claim(client, name) for name in ("mine", "other")}
    async with OwnershipLog(client, "default") as ownership_log:
        for hand in hands:
            await give(client, "box", claims[hand])
        await ownership_log.complete()
    assert ownership_log.owners[box["metadata"]["uid"]] == [claims[hand]["metadata"]["uid"] for hand in hands]
    if len(hands) > 1:
        with pytest.raises(AssertionError):
            ownership_log.check()
    else:
        ownership_log.check()


async def test_claim_bound_to_two_sandboxes_is_reported(client: Client) -> None:
    await claim(client, "mine")
    await told(client, "mine", "one")
    async with OwnershipLog(client, "default") as ownership_log:
        await told(client, "mine", "one")
        await ownership_log.complete()
        ownership_log.check()
        await told(client, "mine", "two")
        await ownership_log.complete()
    with pytest.raises(AssertionError):
        ownership_log.check()
