"""The audit log of the API tells which browser a request of the dashboard is for."""

from __future__ import annotations

from dataclasses import replace

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.dashboard.target import PROGRAM, DashboardTarget
from sandpool.kube.client import Client
from sandpool.testing.world import World
from tests.dashboard.conftest import serving
from tests.support.request_agents import AgentsOfRequests


async def test_requests_name_the_session_that_they_are_for(world: World, target: DashboardTarget) -> None:
    await world.template()
    await world.pool(replicas=2)
    transport = AgentsOfRequests(world.client.transport, PROGRAM)
    async with (
        serving(world, replace(target, client=Client(transport))) as served,
        served.client() as one,
        served.client() as two,
    ):
        for visitor, name in ((one, "first"), (two, "second")):
            claim = {"namespace": served.namespace, "pool": "pool", "name": name, "minutes": 0}
            await visitor.does("POST", "/api/claims", claim)
        uid = (await world.get(SANDBOX_CLAIM, "first"))["metadata"]["uid"]
        both = transport.clients("POST sandboxclaims")
        assert len(both) == 2
        assert all(each.startswith("session/") and visitor.secret not in each for each in both)
        await one.does("DELETE", f"/api/claims/{served.namespace}/first", {"uid": uid})
        (releasing,) = transport.clients("DELETE sandboxclaims")
        assert releasing in both
