"""The audit log of the API tells which session of the server a request is for."""

from __future__ import annotations

from contextlib import AsyncExitStack
from hashlib import sha256

from sandpool.kube.client import Client
from sandpool.mcp.sessions import Sessions
from sandpool.sdk.client import AsyncClient
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient
from tests.support.request_agents import AgentsOfRequests


async def test_requests_name_the_session_that_they_are_for(world: World, pods: FakePodClient) -> None:
    await world.template()
    await world.pool(replicas=3)
    transport = AgentsOfRequests(world.client.transport, "mcp")

    async def pool() -> str:
        return "pool"

    async with AsyncExitStack() as stack:
        service = Service(Client(transport), pods, world.namespace)
        client = await stack.enter_async_context(AsyncClient(service=service))
        sessions = Sessions(client, pool)
        ids = {id: f"session/{sha256(id.encode()).hexdigest()[:12]}" for id in ("one", "two")}  # noqa: A001
        one, two, local = sessions.over_http("one"), sessions.over_http("two"), sessions.local()
        for session in (one, two, local):
            await session.create()
        everyone = {*ids.values(), f"session/{client.id}"}
        assert transport.clients("POST sandboxclaims") == everyone
        assert transport.clients("WATCH sandboxclaims") == {""}, "all sessions share the watch of claims"
        transport.seen.clear()
        async with two.use(two.names()[0]) as sandbox:
            await sandbox.suspend()
        assert transport.clients("PATCH sandboxes") == {ids["two"]}
        await two.release(two.names()[0])
        assert transport.clients("DELETE sandboxclaims") == {ids["two"]}
        await sessions.close()
        assert transport.clients("DELETE sandboxclaims") == everyone
