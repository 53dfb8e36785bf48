"""Two processes of ``sandpool controller`` on a real Kubernetes: one works, one takes over, nothing is bound twice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import pytest

from sandpool.api.kinds import LEASE
from sandpool.bench.child_process import Component
from sandpool.install import names
from tests.support.deployment_process import Deployed
from tests.support.installed_cluster import Cluster
from tests.support.persistent_clients import PersistentClients

pytestmark = pytest.mark.kubernetes

DURATION: Final = 4  # seconds a lease lasts here
OPTIONS: Final = (
    f"--leader-elect-lease-duration={DURATION}s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
)


def two(cluster: Cluster, directory: Path) -> Deployed:
    return Deployed(cluster, directory, replicas=2, options=OPTIONS, kept=False)


async def transitions(cluster: Cluster) -> int:
    lease = await cluster.client.get(LEASE, names.LEASE, names.NAMESPACE)
    count: int = lease["spec"]["leaseTransitions"]
    return count


async def waiting(replica: Component) -> None:
    await asyncio.to_thread(replica.wait_for, "waiting for the lease")


async def served(clients: PersistentClients, count: int) -> None:
    await clients.served(count)
    await clients.filled()
    await clients.check()


async def test_takeover_during_bursts_binds_nothing_twice(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path
) -> None:
    """The leader stops on SIGTERM during a burst, then its successor is killed during another."""
    async with two(cluster, tmp_path) as deployed:
        first = await deployed.leading()
        await clients.filled()
        (second,) = (replica for replica in deployed.replicas if replica is not first)
        await waiting(second)
        before = await transitions(cluster)

        mark = deployed.mark()
        await clients.claim(f"a-{number}" for number in range(12))
        assert await asyncio.to_thread(first.end) == 0
        stopped = time.monotonic()
        assert await deployed.leading(mark) is second
        # A released lease is looked for every 0.45 s with this retry period; the rest is for a busy machine.
        assert time.monotonic() - stopped < DURATION, "it was released, so its expiry was not awaited"
        await served(clients, 12)
        assert "released the lease" in first.tail()

        mark = deployed.mark()
        first.start()
        await asyncio.to_thread(first.wait_for, "waiting for the lease", since=mark[deployed.replicas.index(first)])
        await clients.claim(f"b-{number}" for number in range(12))
        mark = deployed.mark()
        second.kill()
        killed = time.monotonic()
        assert await deployed.leading(mark) is first
        assert time.monotonic() - killed < DURATION + 10, "it ran out"
        await served(clients, 24)
        assert await transitions(cluster) >= before + 2


async def test_frozen_leader_writes_nothing_after_it_resumes(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path
) -> None:
    async with two(cluster, tmp_path) as deployed:
        first = await deployed.leading()
        await clients.filled()
        (second,) = (replica for replica in deployed.replicas if replica is not first)
        await waiting(second)
        await clients.claim(f"a-{number}" for number in range(6))
        mark = deployed.mark()
        first.pause()
        assert await deployed.leading(mark) is second
        await served(clients, 6)
        first.resume()
        assert await asyncio.to_thread(first.wait) == 1
        assert "lost the leader lease; exiting" in first.tail()
        await clients.check()
