"""The audit log of the API tells whose request of the endpoint it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.listener import listening
from sandpool.e2b.options import EndpointOptions
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.kube.user_agent import current, of_program
from sandpool.testing.world import World
from tests.e2b.conftest import Api, Guest, Tenant
from tests.support.fake_pod_client import FakePodClient


class AgentsOfRequests:
    """A transport that remembers the User-Agent with which a request would be sent."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.seen: list[tuple[str, str]] = []

    async def request(self, request: Request) -> Any:
        resource = request.path.rpartition("/namespaces/")[2].split("/")[1:2]
        self.seen.append((" ".join([request.method, *resource]), current(of_program("e2b"))))
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None: ...

    def keys(self, what: str) -> set[str]:
        """The IDs of the keys on whose behalf such requests were sent."""
        return {agent.partition(" key/")[2] for each, agent in self.seen if each == what}


async def test_requests_name_the_key_that_they_are_for(
    world: World, pods: FakePodClient, keys: ApiKeys, options: EndpointOptions
) -> None:
    await world.template(name="python")
    await world.pool(replicas=2, name="python")
    transport = AgentsOfRequests(world.client.transport)
    made = [await keys.create(world.namespace) for _ in range(2)]
    first, second = (key.id for _, key in made)
    async with (
        Endpoint.opened(Client(transport), pods, keys, options, SystemClock()) as endpoint,
        listening(endpoint, "127.0.0.1", 0) as (_, port),
        aiohttp.ClientSession() as session,
    ):
        api = Api(session, f"http://127.0.0.1:{port}")
        guests: list[Guest] = [await Tenant(api, key).create(envVars={"A": "b"}) for key, _ in made]
        assert transport.keys("POST sandboxclaims") == transport.keys("POST secrets") == {first, second}
        transport.seen.clear()
        assert (await api.request("GET", "/health", guests[1].headers)).status == 204
        assert (await api.request("GET", "/files?path=none", guests[1].headers)).status == 404
        assert transport.keys("GET sandboxes") == {second}
        assert (await Tenant(api, made[0][0])("DELETE", f"/sandboxes/{guests[0].id}")).status == 204
        assert transport.keys("DELETE sandboxclaims") == {first}
