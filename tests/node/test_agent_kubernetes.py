"""The agent as a node of a real Kubernetes, with containers that run nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import LEASE, NODE, POD, SERVICE_ACCOUNT
from sandpool.api.resource import Object, SharedObject
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound
from sandpool.node.agent import AgentOptions, NodeAgent, Parts
from sandpool.node.pods.context import Runtimes
from sandpool.node.registration import RegistrationOptions
from sandpool.node.scheduling.scheduler import Scheduler
from sandpool.testing.objects import pod
from sandpool.testing.waiting import until
from tests.support.backends import new_namespace
from tests.support.control_plane import ControlPlane
from tests.support.fake_node_parts import FakeImages, FakeLogs, FakeNetwork, FakeVolumes
from tests.support.fake_runtime import FakeRuntime
from tests.support.http_backends import KubernetesBackend

pytestmark = pytest.mark.kubernetes
OURS = {"key": "tests", "value": "node-agent", "effect": "NoSchedule"}


class Cluster:
    def __init__(
        self, client: Client, namespace: str, runtime: FakeRuntime, network: FakeNetwork, agent: NodeAgent
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.runtime = runtime
        self.network = network
        self.agent = agent

    async def create(self, name: str, **spec: object) -> None:
        # Fake volumes ignore the token volume that Kubernetes adds.
        body = {"automountServiceAccountToken": False, "tolerations": [OURS | {"operator": "Equal"}], **spec}
        await self.client.create(POD, pod(name, spec=body), self.namespace)

    async def get(self, name: str) -> SharedObject:
        return await self.client.get(POD, name, self.namespace)

    async def ready(self, name: str) -> SharedObject:
        async def reached() -> SharedObject | None:
            found = await self.get(name)
            condition = condition_of(found, "Ready")
            return found if condition is not None and condition["status"] == "True" else None

        found = await until(reached)
        assert found is not None
        return found

    async def phase(self, name: str, phase: str) -> SharedObject:
        async def reached() -> SharedObject | None:
            found = await self.get(name)
            return found if found["status"].get("phase") == phase else None

        found = await until(reached)
        assert found is not None
        return found


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    backend = KubernetesBackend(control_plane)
    namespace = await new_namespace(backend)
    client, own = backend.client_for("users"), backend.client_for("node")

    async def account() -> bool:
        try:
            await client.get(SERVICE_ACCOUNT, "default", namespace)
        except NotFound:
            return False
        return True

    await until(account)
    clock, name, runtime, network = SystemClock(), f"node-{namespace}", FakeRuntime(), FakeNetwork()
    parts = Parts(Runtimes({"fake": runtime}, "fake"), FakeImages(), network, FakeVolumes(), FakeLogs())
    agent = NodeAgent(own, clock, Random(), AgentOptions(tmp_path, RegistrationOptions(name)), parts)
    scheduler = Scheduler(own, clock, Random())
    await agent.start()
    # Kubernetes taints every new node; the controller that removes the taint does not run here.
    # Another taint keeps the pods of other tests away.
    await client.patch(NODE, name, MergePatch({"spec": {"taints": [OURS]}}))
    await scheduler.start()
    yield Cluster(client, namespace, runtime, network, agent)
    await scheduler.stop()
    await agent.stop(grace=1.0)
    network.close()
    await client.delete(NODE, name)
    await backend.close()


async def test_node_has_a_ready_condition_and_a_lease(cluster: Cluster) -> None:
    name = cluster.agent.name
    node = await cluster.client.get(NODE, name)
    ready = condition_of(node, "Ready")
    assert ready is not None and ready["status"] == "True"
    lease = await cluster.client.get(LEASE, name, "kube-node-lease")
    assert lease["spec"]["holderIdentity"] == name


async def test_pod_is_bound_runs_and_is_removed(cluster: Cluster) -> None:
    await cluster.create("one")
    found = await cluster.ready("one")
    assert found["spec"]["nodeName"] == cluster.agent.name
    assert found["status"]["phase"] == "Running"
    assert found["status"]["podIPs"] == [{"ip": cluster.network.addresses[found["metadata"]["uid"]]}]
    await cluster.client.delete(POD, "one", cluster.namespace)

    async def gone() -> bool:
        try:
            await cluster.get("one")
        except NotFound:
            return True
        return False

    await until(gone)
    assert not cluster.runtime.open


async def test_container_ends_and_restarts(cluster: Cluster) -> None:
    await cluster.create("one", restartPolicy="OnFailure")
    await cluster.ready("one")
    cluster.runtime.container("main").end(1)

    async def restarted() -> bool:
        status = (await cluster.get("one"))["status"]["containerStatuses"][0]
        return bool(status["restartCount"] == 1 and "running" in status["state"])

    await until(restarted)
    cluster.runtime.container("main").end(0)
    found = await cluster.phase("one", "Succeeded")
    assert found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_unschedulable_pod_is_reported(cluster: Cluster) -> None:
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "10k"}}}
    await cluster.create("large", containers=[container])

    async def told() -> Object | None:
        condition = condition_of(await cluster.get("large"), "PodScheduled")
        return condition if condition is not None and condition["status"] == "False" else None

    condition = await until(told)
    assert condition is not None
    assert (condition["reason"], "Insufficient cpu" in condition["message"]) == ("Unschedulable", True)
    await cluster.client.delete(POD, "large", cluster.namespace)


async def test_rejected_pod_fails_with_a_message(cluster: Cluster) -> None:
    await cluster.create("refused", hostNetwork=True)
    found = await cluster.phase("refused", "Failed")
    assert "spec.hostNetwork" in found["status"]["message"]
