"""Whatever breaks in the middle of a burst with the storage ``aggregated``, on a real Kubernetes.

`sandpool apiserver` is a process that is restarted when it ends. Every claim is served once, nothing is bound twice,
nothing leaks, and the pool is full again."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandpool.bench.child_process import Component
from sandpool.engine.clock import SystemClock
from sandpool.explain.audit import Audit, request_of_kubernetes
from sandpool.install import names
from sandpool.node.simulated import SimulatedNode
from sandpool.server.serving.pki import Authority
from sandpool.testing.waiting import until
from tests.on_kubernetes.test_outages import BURST, LONG, SHORT, burst, nothing, past, starved, tcp_proxy, through
from tests.support.aggregated_backend import ACCOUNT
from tests.support.aggregated_cluster import AggregatedApi
from tests.support.api_access import HttpEndpoint
from tests.support.assets import Assets
from tests.support.control_plane import ControlPlane, aggregation_flags
from tests.support.deployment_process import DeployedApi
from tests.support.installed_cluster import Cluster
from tests.support.ownership_log import OwnershipLog
from tests.support.permissions import use_of
from tests.support.persistent_clients import PersistentClients
from tests.support.users import ADMIN

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    # Of a server that is killed while a client of these tests shakes hands with it: asyncio forgets the socket.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|function _Selector)"),
]

SIZE = 12  # of the pool


@pytest.fixture(scope="module")
def plane(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ControlPlane]:
    flags = aggregation_flags(Authority(tmp_path_factory.mktemp("front-proxy"), SystemClock()))
    with ControlPlane(kubernetes_assets, fsync=False, audit=(ACCOUNT,), apiserver_flags=flags) as plane:
        yield plane
        use_of(pytestconfig, ACCOUNT).note(plane.audit_log, refusals=False)


@pytest.fixture(scope="module")
def api(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatedApi]:
    """The registration and the volume, for all tests."""
    api = AggregatedApi(plane, tmp_path_factory.mktemp("volume"))
    yield api
    api.close()


@pytest.fixture
async def cluster(plane: ControlPlane, api: AggregatedApi) -> AsyncIterator[Cluster]:
    endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
    client = endpoint.client_for(ADMIN)
    await api.register(client)
    yield Cluster(plane, client, Audit(plane.audit_log, request_of_kubernetes))
    await endpoint.close()


@asynccontextmanager
async def users_of(deployed: DeployedApi) -> AsyncIterator[PersistentClients]:
    """Clients with a full pool, and a simulated node for their pods. Fails if a sandbox has two owners at any time, or
    if an object is left at the end."""
    cluster = deployed.cluster
    await deployed.leading()
    await deployed.api.available(cluster.client)
    # The garbage collector looks for new kinds every half a minute, and when it starts.
    cluster.plane.restart(cluster.plane.controller_manager)
    clients = PersistentClients(cluster.client, f"t-{secrets.token_hex(4)}", SIZE)
    await clients.settle_down()
    running = SimulatedNode(cluster.client, SystemClock(), namespace=clients.namespace, brief=True)
    node = asyncio.create_task(running.run())
    async with OwnershipLog(cluster.client, clients.namespace) as ownerships:
        await clients.filled()
        yield clients
        await ownerships.complete()
        await clients.leave()
    node.cancel()
    await asyncio.gather(node, return_exceptions=True)
    ownerships.check()


async def test_claims_are_served_when_the_process_is_killed_in_bursts(
    cluster: Cluster, api: AggregatedApi, tmp_path: Path
) -> None:
    async with DeployedApi(cluster, tmp_path, api, options=SHORT) as deployed, users_of(deployed) as clients:
        (process,) = deployed.replicas

        async def kill() -> None:
            mark = deployed.mark()
            process.kill()
            await deployed.leading(mark)

        await burst(clients, kill)
        await burst(clients, kill, "b", BURST)
        assert deployed.restarts == 2


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_claims_are_served_when_kube_apiserver_restarts_in_a_burst(
    cluster: Cluster, api: AggregatedApi, tmp_path: Path, crash: bool
) -> None:
    plane = cluster.plane
    async with DeployedApi(cluster, tmp_path, api) as deployed, users_of(deployed) as clients:

        async def restart() -> None:
            plane.restart(plane.apiserver, crash=crash)

        await burst(clients, restart)


async def test_claims_are_served_when_connections_are_cut_in_a_burst(
    cluster: Cluster, api: AggregatedApi, tmp_path: Path
) -> None:
    """Those of the process to kube-apiserver, so answers to creations of pods that were carried out are lost, too."""
    async with (
        tcp_proxy(cluster) as proxy,
        DeployedApi(cluster, tmp_path, api, server=through(proxy)) as deployed,
        users_of(deployed) as clients,
    ):

        async def cut() -> None:
            for served in range(3, BURST, 3):
                await clients.served(served, at_least=True)
                proxy.cut()

        passages = proxy.passages
        await burst(clients, cut)
        assert proxy.passages > passages + BURST // 3, "new connections were made"
        assert deployed.restarts == 0


async def test_compacted_history_causes_a_relist_of_pods(cluster: Cluster, api: AggregatedApi, tmp_path: Path) -> None:
    """The process hears nothing of pods while claims come, and kube-apiserver forgets what it would have told it: 410.
    Our kinds are in the process, which never lists them there."""
    plane, audit = cluster.plane, cluster.audit
    async with (
        tcp_proxy(cluster) as proxy,
        DeployedApi(cluster, tmp_path, api, server=through(proxy), options=LONG) as deployed,
        users_of(deployed) as clients,
    ):
        proxy.hold()
        await clients.claim(f"a-{number}" for number in range(BURST))
        plane.compact()
        plane.restart(plane.apiserver)
        asked = len(audit)
        proxy.open()
        await clients.served(BURST)
        await clients.filled()
        await clients.check()
        assert "too old resource version" in deployed.said()

        def listed() -> set[str]:
            return {each.resource for each in audit.requests(since=asked, user=ACCOUNT) if each.verb == "list"}

        async def is_listed() -> bool:
            return "pods" in listed()

        await until(is_listed)
        assert not {"sandboxclaims", "sandboxes", "sandboxwarmpools", "sandboxtemplates"} & listed()
        assert deployed.restarts == 0


async def test_claims_are_served_when_kube_apiserver_rejects_most_requests(
    cluster: Cluster, api: AggregatedApi, tmp_path: Path
) -> None:
    """kube-apiserver answers the process 429 beyond a handful of concurrent requests. It keeps its lease."""
    async with DeployedApi(cluster, tmp_path, api, options=LONG) as deployed, users_of(deployed) as clients:
        asked = len(cluster.audit)
        async with starved(cluster.client, names.APISERVER):
            await burst(clients, nothing)
        refused = Counter(each.code for each in cluster.audit.requests(since=asked, user=ACCOUNT))[429]
        assert refused > BURST // 3, "the storm was one"  # only requests for pods and leases go there
        assert deployed.restarts == 0


async def test_claims_are_served_when_etcd_stops_for_30_seconds(
    cluster: Cluster, api: AggregatedApi, tmp_path: Path
) -> None:
    """Longer than the lease: the process cannot renew it, ends, and serves again when it has it again."""
    plane = cluster.plane
    async with DeployedApi(cluster, tmp_path, api) as deployed, users_of(deployed) as clients:

        async def stop() -> None:
            mark, end = deployed.mark(), time.monotonic() + 30
            plane.etcd.pause()
            try:
                await clients.eventually(lambda: past(end))
            finally:
                plane.etcd.resume()
            await deployed.leading(mark)

        await burst(clients, stop)
        assert "lost the leader lease" in deployed.said()
        assert deployed.restarts >= 1


async def test_copy_on_another_volume_never_serves(cluster: Cluster, api: AggregatedApi, tmp_path: Path) -> None:
    """It waits for the lease, gets it when the process on the volume is killed, and refuses."""
    async with (
        DeployedApi(cluster, tmp_path, api, options=SHORT, kept=False) as deployed,
        users_of(deployed) as clients,
    ):
        (process,) = deployed.replicas
        copy = Component("copy", [*deployed.command(1), *SHORT], tmp_path / "copy.log")
        copy.start()
        try:
            await asyncio.to_thread(copy.wait_for, "waiting for the lease")

            async def kill() -> None:
                process.kill()
                assert await asyncio.to_thread(copy.wait, 90) == 1
                process.start()

            await burst(clients, kill)
        finally:
            copy.stop()
        said = copy.log.read_text()
        assert "is empty, and this cluster has its sandboxes" in said
        assert "serving agents.x-k8s.io" not in said
