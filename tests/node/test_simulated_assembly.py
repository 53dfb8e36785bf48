"""Simulated nodes as a cluster shows them: Nodes, leases, capacity, scheduling."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandpool.api.conditions import READY, condition_of, is_ready
from sandpool.api.kinds import LEASE, NODE, NODE_LEASES, POD, RUNTIME_CLASS
from sandpool.api.resource import Object
from sandpool.kube.client import Client, MergePatch
from sandpool.node.simulated_assembly import DEFAULT_PODS, SimulatedNodes, remove_other_nodes
from sandpool.server.api_server import ApiServer
from sandpool.server.controllers.node_lifecycle import GRACE
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import Fault, FaultyTransport
from sandpool.testing.objects import new, pod
from sandpool.testing.quiescence import settle
from tests.support.manual_time import pass_time


class Cluster:
    """Simulated nodes on an API server of their own, with a manual clock."""

    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.client = server.client()
        self.wire = FaultyTransport(server.client(name="nodes").transport)
        self.running: SimulatedNodes | None = None

    async def start(self, count: int, *, pods: int = DEFAULT_PODS) -> None:
        await remove_other_nodes(self.client, [f"simulated-{number}" for number in range(1, count + 1)])
        self.running = SimulatedNodes(lambda name: Client(self.wire), self.clock, Random(1), count, pods=pods)
        await self.running.start()
        await self.settle()

    async def stop(self) -> None:
        if self.running is not None:
            await self.running.stop()
        self.running = None

    async def settle(self) -> None:
        await settle(self.clock, self.wire)

    async def passes(self, seconds: float) -> None:
        """Let time pass, in steps so short that the server's own controllers keep up."""
        for _ in range(round(seconds / 5.0)):
            await pass_time(self.clock, 5.0, self.wire)
            for each in self.server.controllers.values():
                await each.controller.queue.settled()
        await self.settle()

    async def create(self, *names: str, **spec: Any) -> None:
        for name in names:
            made = pod(name)
            made["spec"] |= spec
            await self.client.create(POD, made, "default")
        await self.settle()

    async def pods(self) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in (await self.client.list(POD, "default"))["items"]}

    async def nodes(self) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in (await self.client.list(NODE))["items"]}

    async def why(self, name: str) -> str:
        condition = condition_of((await self.pods())[name], "PodScheduled") or {}
        return str(condition.get("message"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    clock = ManualClock()
    server = ApiServer(tmp_path, clock=clock, nodeless=())
    await server.start()
    cluster = Cluster(server, clock)
    yield cluster
    await cluster.stop()
    await server.stop()


async def test_simulated_nodes_are_nodes(cluster: Cluster) -> None:
    await cluster.start(2, pods=100)
    nodes = await cluster.nodes()
    assert list(nodes) == ["simulated-1", "simulated-2"]
    second = nodes["simulated-2"]
    assert second["metadata"]["labels"].items() >= {
        ("kubernetes.io/hostname", "simulated-2"),
        ("kubernetes.io/os", "linux"),
        ("sandpool.dev/simulated", "true"),
    }
    status = second["status"]
    assert status["capacity"] == {"cpu": "100", "memory": "400Gi", "ephemeral-storage": "1000Gi", "pods": "100"}
    assert status["allocatable"] == {**status["capacity"], "ephemeral-storage": "900Gi"}
    assert status["addresses"] == [
        {"type": "InternalIP", "address": "192.0.2.2"},
        {"type": "Hostname", "address": "simulated-2"},
    ]
    states = {each["type"]: each["status"] for each in status["conditions"]}
    assert states == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", READY: "True"}


async def test_pods_are_spread_over_the_nodes_and_become_ready(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("a", "b", "c", "d")
    pods = await cluster.pods()
    assert all(map(is_ready, pods.values()))
    nodes = [each["spec"]["nodeName"] for each in pods.values()]
    assert sorted(nodes) == ["simulated-1", "simulated-1", "simulated-2", "simulated-2"]
    assert len({each["status"]["podIP"] for each in pods.values()}) == 4
    addresses = {name: node["status"]["addresses"][0]["address"] for name, node in (await cluster.nodes()).items()}
    assert all(each["status"]["hostIP"] == addresses[each["spec"]["nodeName"]] for each in pods.values())


async def test_a_pod_costs_a_binding_and_a_status(cluster: Cluster) -> None:
    await cluster.start(1)
    before = len(cluster.wire.requests)
    await cluster.create("a")
    await cluster.passes(5.0)  # events would be written by now
    written = [each for each in cluster.wire.requests[before:] if each.method != "GET"]
    pods = [each.path.rpartition("/")[2] for each in written if "/pods/" in each.path]
    others = {each.path.split("/")[-2] for each in written if "/pods/" not in each.path}
    assert pods == ["binding", "status"]
    assert others <= {NODE_LEASES, "leases"}, "besides the heartbeat nothing is written"


async def test_capacity_of_a_simulated_node_counts(cluster: Cluster) -> None:
    await cluster.start(1, pods=2)
    await cluster.create("a", "b", "c")
    assert (await cluster.why("c")).startswith("0/1 nodes are available: 1 Too many pods")
    large = {"resources": {"requests": {"cpu": "3"}}}
    await cluster.create("large", containers=[{"name": "main", "image": "image", **large}])
    assert "Insufficient cpu" in await cluster.why("large")
    await cluster.client.delete(POD, "a", "default", grace_period_seconds=0)
    await cluster.settle()
    assert is_ready((await cluster.pods())["c"])


async def test_cordoned_simulated_node_gets_no_pods(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.client.patch(NODE, "simulated-1", MergePatch({"spec": {"unschedulable": True}}))
    await cluster.create("a", "b")
    assert {each["spec"]["nodeName"] for each in (await cluster.pods()).values()} == {"simulated-2"}


async def test_pods_of_simulated_nodes_wait_for_no_volume_and_use_any_runtime_class(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.client.create(RUNTIME_CLASS, new(RUNTIME_CLASS, "mine", handler="own-handler"))
    claimed = {"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}
    await cluster.create("with-volume", volumes=[claimed])
    await cluster.create("own-class", runtimeClassName="mine")
    await cluster.create("gvisor", runtimeClassName="gvisor")
    pods = await cluster.pods()
    assert {name: is_ready(each) for name, each in pods.items()} == dict.fromkeys(pods, True)


async def test_simulated_nodes_stay_ready(cluster: Cluster) -> None:
    await cluster.start(3)
    await cluster.create("a")
    began = (await cluster.client.get(LEASE, "simulated-3", NODE_LEASES))["spec"]["renewTime"]
    await cluster.passes(5 * GRACE)
    assert all(map(is_ready, (await cluster.nodes()).values()))
    assert is_ready((await cluster.pods())["a"])
    assert (await cluster.client.get(LEASE, "simulated-3", NODE_LEASES))["spec"]["renewTime"] > began


async def test_node_that_was_silent_is_ready_again_with_its_pods(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.create("a")
    address = (await cluster.pods())["a"]["status"]["podIP"]
    cluster.wire.fault = lambda request: Fault.CUT if request.method != "GET" else None
    await cluster.passes(GRACE + 20.0)
    assert not is_ready((await cluster.nodes())["simulated-1"])
    assert not is_ready((await cluster.pods())["a"])
    cluster.wire.heal()
    await cluster.passes(20.0)
    assert is_ready((await cluster.nodes())["simulated-1"])
    found = (await cluster.pods())["a"]
    assert is_ready(found)
    assert (found["status"]["phase"], found["status"]["podIP"]) == ("Running", address)


async def test_stopped_simulated_node_says_so_and_goes_on_after_a_restart(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.create("a")
    await cluster.stop()
    stopped = condition_of((await cluster.nodes())["simulated-1"], READY) or {}
    assert (stopped["status"], stopped["reason"]) == ("False", "NodeStopped")
    await cluster.start(1)
    assert is_ready((await cluster.nodes())["simulated-1"])
    await cluster.create("b")
    pods = await cluster.pods()
    assert [is_ready(each) for each in pods.values()] == [True, True]
    assert pods["a"]["status"]["podIP"] != pods["b"]["status"]["podIP"], "an address that is in use is not given again"


async def test_simulated_nodes_that_are_not_wanted_any_more_are_removed(cluster: Cluster) -> None:
    await cluster.client.create(NODE, new(NODE, "real"))
    await cluster.start(3)
    await cluster.create("a", "b", "c")
    await cluster.stop()
    await cluster.start(1)
    assert set(await cluster.nodes()) == {"real", "simulated-1"}
    await cluster.passes(60.0)  # pods of Nodes that are gone are garbage collected
    assert {each["spec"]["nodeName"] for each in (await cluster.pods()).values()} == {"simulated-1"}
    leases = (await cluster.client.list(LEASE, NODE_LEASES))["items"]
    assert [each["metadata"]["name"] for each in leases] == ["simulated-1"]
    await cluster.stop()
    await remove_other_nodes(cluster.client, [])
    assert set(await cluster.nodes()) == {"real"}
