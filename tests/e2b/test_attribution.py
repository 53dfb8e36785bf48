"""The audit log of the API tells whose request of the endpoint it was."""

from __future__ import annotations

import aiohttp

from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.listener import listening
from sandpool.e2b.options import EndpointOptions
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.testing.world import World
from tests.e2b.conftest import Api, Guest, Tenant
from tests.support.fake_pod_client import FakePodClient
from tests.support.request_agents import AgentsOfRequests


async def test_requests_name_the_key_that_they_are_for(
    world: World, pods: FakePodClient, keys: ApiKeys, options: EndpointOptions
) -> None:
    await world.template(name="python")
    await world.pool(replicas=2, name="python")
    transport = AgentsOfRequests(world.client.transport, "e2b")
    made = [await keys.create(world.namespace) for _ in range(2)]
    first, second = (key.id for _, key in made)
    async with (
        Endpoint.opened(Client(transport), pods, keys, options, SystemClock()) as endpoint,
        listening(endpoint, "127.0.0.1", 0) as (_, port),
        aiohttp.ClientSession() as session,
    ):
        api = Api(session, f"http://127.0.0.1:{port}")
        guests: list[Guest] = [await Tenant(api, key).create(envVars={"A": "b"}) for key, _ in made]
        assert (
            transport.clients("POST sandboxclaims")
            == transport.clients("POST secrets")
            == {f"key/{first}", f"key/{second}"}
        )
        transport.seen.clear()
        assert (await api.request("GET", "/health", guests[1].headers)).status == 204
        assert (await api.request("GET", "/files?path=none", guests[1].headers)).status == 404
        assert transport.clients("GET sandboxes") == {f"key/{second}"}
        assert (await Tenant(api, made[0][0])("DELETE", f"/sandboxes/{guests[0].id}")).status == 204
        assert transport.clients("DELETE sandboxclaims") == {f"key/{first}"}
