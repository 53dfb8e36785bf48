"""The role of the endpoint in docs/e2b.md is enough for all that it does with the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, SANDBOX
from sandpool.api.resource import Object
from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.options import EndpointOptions
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.server.request.messages import User
from sandpool.testing.backend import InProcessBackend
from sandpool.testing.objects import new
from sandpool.testing.world import World
from tests.e2b.conftest import Tenant
from tests.support.fake_pod_client import FakePodClient

_DOCUMENT = Path(__file__).parents[2] / "docs" / "e2b.md"
_ACCOUNT = "e2b-account"
_DISK = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
}


def documented_role() -> Object:
    _, _, rest = _DOCUMENT.read_text().partition("```yaml\napiVersion: rbac.authorization.k8s.io/v1\n")
    role: Object = yaml.safe_load(rest.partition("```")[0])
    assert role["kind"] == "ClusterRole"
    return role


@pytest_asyncio.fixture
async def account(world: World) -> Client:
    """A client that has the role in the documentation and no other one."""
    assert isinstance(world.backend, InProcessBackend)
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": "sandpool-e2b"}
    subject = {"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": _ACCOUNT}
    binding = new(CLUSTER_ROLE_BINDING, "sandpool-e2b", roleRef=reference, subjects=[subject])
    await world.client.create(CLUSTER_ROLE, new(CLUSTER_ROLE, "sandpool-e2b", rules=documented_role()["rules"]))
    await world.client.create(CLUSTER_ROLE_BINDING, binding)
    client = world.backend.server.client(User(_ACCOUNT, ("system:authenticated",), "uid"), name=_ACCOUNT)

    async def granted() -> bool:
        try:
            await client.list(SANDBOX, world.namespace)
        except Forbidden:
            return False
        return True

    await world.until(granted)
    return client


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
