"""Nodes that stopped renewing their lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import LEASE, NODE, NODE_LEASES, POD
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import micro_timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new, pod

GRACE = 50.0
READY = {"status": {"conditions": [{"type": "Other", "status": "True"}, {"type": "Ready", "status": "True"}]}}

Passes = Callable[[float], Awaitable[None]]


@pytest.fixture
def client(cluster: ApiServer) -> Client:
    return cluster.client()


class Nodes:
    """Creates nodes with pods, and renews leases."""

    def __init__(self, client: Client, clock: ManualClock) -> None:
        self.client = client
        self.clock = clock

    async def make(self, name: str) -> None:
        """Create a ready node with a lease and a ready pod."""
        node = await self.client.create(NODE, new(NODE, name))
        await self.client.patch(NODE, name, MergePatch(READY), subresource="status")
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        await self.client.create(LEASE, new(LEASE, name, metadata={"ownerReferences": [owner]}), NODE_LEASES)
        await self.client.create(POD, pod(name, spec={"nodeName": name}), "default")
        await self.client.patch(POD, name, MergePatch(READY), "default", subresource="status")

    async def renew(self, name: str) -> None:
        spec = {"renewTime": micro_timestamp(self.clock.now())}
        await self.client.patch(LEASE, name, MergePatch({"spec": spec}), NODE_LEASES)

    async def ready(self, name: str) -> tuple[str, str]:
        """Return the Ready status of a node and of its pod."""
        node = await self._condition(NODE, name, None)
        return node["status"], (await self._condition(POD, name, "default"))["status"]

    async def reasons(self, name: str) -> tuple[str, str]:
        node = await self._condition(NODE, name, None)
        return node["reason"], (await self._condition(POD, name, "default"))["reason"]

    async def _condition(self, type: ResourceType, name: str, namespace: str | None) -> Object:
        found = await self.client.get(type, name, namespace)
        other, ready = condition_of(found, "Other"), condition_of(found, "Ready")
        assert other is not None
        assert other["status"] == "True"
        assert ready is not None
        return ready


@pytest.fixture
def nodes(client: Client, clock: ManualClock) -> Nodes:
    return Nodes(client, clock)


async def test_silent_node_and_its_pods_become_not_ready(nodes: Nodes, passes: Passes, clock: ManualClock) -> None:
    await nodes.make("silent")
    await nodes.make("alive")
    await passes(GRACE - 1)
    await nodes.renew("alive")
    assert await nodes.ready("silent") == ("True", "True")
    await passes(2)
    assert await nodes.ready("silent") == ("Unknown", "False")
    assert await nodes.reasons("silent") == ("NodeStatusUnknown", "NodeNotReady")
    assert await nodes.ready("alive") == ("True", "True")


async def test_node_that_renews_its_lease_stays_ready(nodes: Nodes, passes: Passes) -> None:
    await nodes.make("alive")
    for _ in range(20):
        await passes(GRACE - 1)
        await nodes.renew("alive")
    assert await nodes.ready("alive") == ("True", "True")


async def test_node_can_return_and_fall_silent_again(nodes: Nodes, client: Client, passes: Passes) -> None:
    await nodes.make("node")
    for _ in range(3):
        await passes(GRACE)
        assert await nodes.ready("node") == ("Unknown", "False")
        await nodes.renew("node")
        await client.patch(NODE, "node", MergePatch(READY), subresource="status")
        await client.patch(POD, "node", MergePatch(READY), "default", subresource="status")
        await passes(GRACE - 1)
        assert await nodes.ready("node") == ("True", "True")


async def test_unchanged_status_is_not_written_again(nodes: Nodes, client: Client, passes: Passes) -> None:
    await nodes.make("node")
    await passes(GRACE)
    before = await client.get(NODE, "node"), await client.get(POD, "node", "default")
    await passes(10 * GRACE)
    assert (await client.get(NODE, "node"), await client.get(POD, "node", "default")) == before


async def test_node_without_a_lease_is_left_alone(nodes: Nodes, client: Client, passes: Passes) -> None:
    await nodes.make("node")
    await client.delete(LEASE, "node", NODE_LEASES)
    await passes(10 * GRACE)
    assert await nodes.ready("node") == ("True", "True")


async def test_node_that_reports_not_ready_is_left_alone(nodes: Nodes, client: Client, passes: Passes) -> None:
    await nodes.make("node")
    stopped = {"type": "Ready", "status": "False", "reason": "NodeStopped"}
    conditions = [READY["status"]["conditions"][0], stopped]
    await client.patch(NODE, "node", MergePatch({"status": {"conditions": conditions}}), subresource="status")
    await passes(GRACE)
    assert await nodes.ready("node") == ("False", "True")


async def test_restarted_server_waits_a_full_grace_period(nodes: Nodes, cluster: ApiServer, passes: Passes) -> None:
    await nodes.make("node")
    await passes(GRACE - 1)
    await cluster.stop()
    await cluster.start()
    nodes.client = cluster.client()
    await passes(GRACE - 1)
    assert await nodes.ready("node") == ("True", "True")
    await passes(1)
    assert await nodes.ready("node") == ("Unknown", "False")


async def test_deleted_node_leaves_no_state_behind(nodes: Nodes, client: Client, passes: Passes) -> None:
    await nodes.make("node")
    await client.delete(NODE, "node")
    await passes(GRACE)
    await nodes.client.create(NODE, new(NODE, "node"))
    await client.patch(NODE, "node", MergePatch(READY), subresource="status")
    await passes(10 * GRACE)
    found = condition_of(await client.get(NODE, "node"), "Ready")
    assert found is not None
    assert found["status"] == "True"


async def test_node_lifecycle_is_off_by_default(tmp_path: Path, clock: ManualClock) -> None:
    server = ApiServer(tmp_path, clock=clock)
    await server.start()
    nodes = Nodes(server.client(), clock)
    await nodes.make("node")
    await clock.advance(10 * GRACE)
    assert await nodes.ready("node") == ("True", "True")
    await server.stop()
