"""Whatever breaks in the middle of a burst, on a real Kubernetes with the controllers as processes of their own: every
claim is served once, nothing is bound twice, nothing leaks, and the pool is full again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from sandpool.api.resource import ResourceType
from sandpool.install import names
from sandpool.kube.client import Client
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.deployment_process import Deployed
from tests.support.installed_cluster import Cluster
from tests.support.persistent_clients import PersistentClients
from tests.support.tcp_proxy import TcpProxy

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    # Of a server that is killed while a client of these tests shakes hands with it: asyncio forgets the socket.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|function _Selector)"),
]

BURST: Final = 30  # more than the pool has
# A lease that expires soon, for tests that kill its holder; and one that outlives every pause of these tests.
SHORT: Final = (
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
)
LONG: Final = ("--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=100s")
_FAIRNESS: Final = "flowcontrol.apiserver.k8s.io"
_FLOW: Final = ResourceType(_FAIRNESS, "v1", "FlowSchema", "flowschemas", namespaced=False)
_LEVEL: Final = ResourceType(
    _FAIRNESS, "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", namespaced=False
)


async def burst(
    clients: PersistentClients, breaking: Callable[[], Awaitable[None]], name: str = "a", before: int = 0
) -> None:
    """Claims at once; when some of them are served, something breaks. In the end all is as if nothing had happened."""
    await clients.claim(f"{name}-{number}" for number in range(BURST))
    await clients.served(before + 3, at_least=True)
    await breaking()
    await clients.served(before + BURST)
    await clients.filled()
    await clients.check()


async def test_claims_are_served_when_controllers_are_killed_in_a_burst(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path
) -> None:
    async with Deployed(cluster, tmp_path, replicas=2, options=SHORT) as deployed:
        leader = await deployed.leading()
        await clients.filled()

        async def kill_all() -> None:
            for replica in deployed.replicas:
                replica.kill()

        async def kill_leader() -> None:
            mark = deployed.mark()
            leader.kill()
            await deployed.leading(mark)

        await burst(clients, kill_leader)
        await burst(clients, kill_all, "b", BURST)
        assert deployed.restarts >= 3
        await clients.leave()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_claims_are_served_when_kube_apiserver_restarts_in_a_burst(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path, crash: bool
) -> None:
    plane = cluster.plane
    async with Deployed(cluster, tmp_path) as deployed:
        await deployed.leading()
        await clients.filled()

        async def restart() -> None:
            plane.restart(plane.apiserver, crash=crash)

        await burst(clients, restart)
        await clients.leave()


async def test_claims_are_served_when_connections_are_cut_in_a_burst(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path
) -> None:
    """Watches and requests alike, so answers to writes that were carried out are lost, too."""
    async with tcp_proxy(cluster) as proxy, Deployed(cluster, tmp_path, server=through(proxy)) as deployed:
        await deployed.leading()
        await clients.filled()

        async def cut() -> None:
            for served in range(3, BURST, 3):
                await clients.served(served, at_least=True)
                proxy.cut()

        passages = proxy.passages
        await burst(clients, cut)
        assert proxy.passages > passages + BURST // 3, "new connections were made"
        assert "watching again from version" in deployed.said()
        assert deployed.restarts == 0
        await clients.leave()


async def test_compacted_history_causes_a_relist(cluster: Cluster, clients: PersistentClients, tmp_path: Path) -> None:
    """The controllers hear nothing while claims come, and the API forgets what it would have told them: 410."""
    plane, audit = cluster.plane, cluster.audit
    async with (
        tcp_proxy(cluster) as proxy,
        Deployed(cluster, tmp_path, server=through(proxy), options=LONG) as deployed,
    ):
        await deployed.leading()
        await clients.filled()

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

        async def is_listed() -> bool:
            """Each in its own time: claims can be served from what is known of sandboxes."""
            listed = {each.resource for each in audit.requests(since=asked) if each.verb == "list"}
            return {"sandboxclaims", "sandboxes", "pods"} <= listed

        await until(is_listed)
        assert deployed.restarts == 0
        await clients.leave()


async def test_claims_are_served_when_the_api_rejects_most_requests(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path
) -> None:
    """The API answers 429 beyond a handful of concurrent requests. Rejected requests are retried, and the lease is
    kept."""
    async with Deployed(cluster, tmp_path, options=LONG) as deployed:
        await deployed.leading()
        await clients.filled()
        asked = len(cluster.audit)

        async with starved(cluster.client, names.CONTROLLER):
            await burst(clients, nothing)
        refused = Counter(each.code for each in cluster.audit.requests(since=asked))[429]
        assert refused > BURST, "the storm was one"
        assert deployed.restarts == 0
        await clients.leave()


async def test_claims_are_served_when_etcd_stops_for_30_seconds(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path
) -> None:
    """Longer than the lease: the leader cannot renew it, ends, and is started again."""
    plane = cluster.plane
    async with Deployed(cluster, tmp_path) as deployed:
        await deployed.leading()
        await clients.filled()

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
        await clients.leave()


async def nothing() -> None:
    pass


@asynccontextmanager
async def starved(client: Client, account: str) -> AsyncIterator[None]:
    """A service account gets one share of what the API can do at a time, and what is more is refused."""
    limited = {
        "nominalConcurrencyShares": 1,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    }
    subject = {"kind": "ServiceAccount", "serviceAccount": {"namespace": names.NAMESPACE, "name": account}}
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    rule = {"subjects": [subject], "resourceRules": [everything]}
    flow = {
        "priorityLevelConfiguration": {"name": "starved"},
        "matchingPrecedence": 2,
        "rules": [rule],
    }
    await client.create(_LEVEL, new(_LEVEL, "starved", spec={"type": "Limited", "limited": limited}))
    await client.create(_FLOW, new(_FLOW, "starved", spec=flow))
    try:
        yield
    finally:
        await client.delete(_FLOW, "starved")
        await client.delete(_LEVEL, "starved")


async def past(end: float) -> bool:
    return time.monotonic() > end


def tcp_proxy(cluster: Cluster) -> TcpProxy:
    """A proxy of kube-apiserver that can be cut."""
    return TcpProxy("127.0.0.1", int(cluster.plane.url.rpartition(":")[2]))


def through(proxy: TcpProxy) -> str:
    """The address of kube-apiserver through the proxy."""
    return f"https://127.0.0.1:{proxy.port}"
