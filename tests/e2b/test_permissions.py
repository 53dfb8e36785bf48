"""The role of the endpoint in docs/e2b.md is enough for all that it does with the API."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandpool.api.kinds import CLUSTER_ROLE, SANDBOX
from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.options import EndpointOptions
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.testing.world import World
from tests.e2b.conftest import Tenant
from tests.support.documented_role import account_with, documented_rules
from tests.support.fake_pod_client import FakePodClient

_DISK = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
}


@pytest_asyncio.fixture
async def account(world: World) -> Client:
    """A client that has the role in the documentation and no other one."""
    return await account_with(world, "e2b-account", documented_rules("e2b.md"))


@pytest_asyncio.fixture
async def endpoint(
    world: World, account: Client, pods: FakePodClient, keys: ApiKeys, options: EndpointOptions
) -> AsyncIterator[Endpoint]:
    """Takes the place of the endpoint whose account may do everything."""
    await keys.create(world.namespace)  # makes the namespace of the keys
    async with Endpoint.opened(account, pods, ApiKeys(account), options, SystemClock()) as endpoint:
        yield endpoint


async def test_documented_role_is_enough_for_every_call(world: World, tenant: Tenant) -> None:
    await world.template(name="disk", volumeClaimTemplates=[_DISK])
    await world.pool(replicas=0, name="disk", sandboxTemplateRef={"name": "disk"}, filled=False)
    guest = await tenant.create(templateID="disk", envVars={"A": "b"})
    sandbox = f"/sandboxes/{guest.id}"
    assert (await tenant("GET", sandbox)).status == 200
    assert (await tenant("POST", f"{sandbox}/timeout", {"timeout": 60})).status == 204
    _, error = await guest.stream("process.Process/Start", {"process": {"cmd": "sh", "args": ["-c", "test $A = b"]}})
    assert error is None
    assert (await tenant("POST", f"{sandbox}/pause", {"memory": False})).status == 204
    assert (await tenant("POST", f"/v2{sandbox}/connect", {"timeout": 600})).status == 201
    assert len((await tenant("GET", "/v2/sandboxes")).document) == 1
    unknown = await tenant("POST", "/v2/sandboxes", {"templateID": "dis"})
    assert (unknown.status, "Did you mean disk?" in unknown.document["message"]) == (404, True)
    assert (await tenant("DELETE", sandbox)).status == 204


async def test_role_does_not_allow_what_the_endpoint_does_not_do(world: World, account: Client) -> None:
    await world.sandbox("foreign")
    with pytest.raises(Forbidden):
        await account.delete(SANDBOX, "foreign", world.namespace)
    with pytest.raises(Forbidden):
        await account.list(CLUSTER_ROLE)
