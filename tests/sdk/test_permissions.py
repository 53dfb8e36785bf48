"""The role in docs/python.md is enough for all that a program does with the API."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandpool.api.kinds import POD, SANDBOX
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.sdk.client import AsyncClient
from sandpool.service.errors import UnknownName
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support.documented_role import account_with, documented_rules
from tests.support.fake_pod_client import FakePodClient


@pytest_asyncio.fixture
async def account(world: World) -> Client:
    """A client that has the role in the documentation and no other one."""
    return await account_with(world, "program", documented_rules("python.md"))


@pytest_asyncio.fixture
async def client(world: World, account: Client, pods: FakePodClient) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(service=Service(account, pods, world.namespace))
    yield client
    await client.leases.close()
    await client._watch.close()


async def test_documented_role_is_enough_for_every_call(client: AsyncClient) -> None:
    await client.template("boxes", image="sandpool.local/python")
    pool = await client.pool("boxes", template="boxes", size=1)
    await pool.wait_ready()
    async with client.sandbox("boxes", key="job") as sb:
        assert (await sb.run("echo $((6 * 7))")).stdout == "42\n"
        await sb.suspend()
        await sb.resume()
        await sb.extend(60)
        await client.leases.renew()
    kept = await client.sandbox("boxes", keep=True, name="mine")
    assert (await client.connect("mine")).name == kept.name
    await kept.release()
    for asked in (client.sandbox("boxs"), client.template("boxs"), client.pool("boxs")):
        with pytest.raises(UnknownName, match=r"Did you mean boxes\?"):
            await asked
    await pool.scale(0)
    await pool.delete()
    await (await client.template("boxes")).delete()


async def test_role_does_not_allow_what_a_program_does_not_do(world: World, account: Client) -> None:
    await world.sandbox("foreign")
    with pytest.raises(Forbidden):
        await account.delete(SANDBOX, "foreign", world.namespace)
    with pytest.raises(Forbidden):
        await account.list(POD, world.namespace)
