"""Two processes of ``sandpool controller`` on a real Kubernetes: one works, one takes over, nothing is bound twice."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from sandpool.api.kinds import LEASE, NAMESPACE, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import SystemClock
from sandpool.install.names import LEASE as LEASE_NAME
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.testing.component import Component
from sandpool.testing.control_plane import ControlPlane
from sandpool.testing.definitions import install
from sandpool.testing.node import SimulatedNode
from sandpool.testing.objects import new
from sandpool.testing.sandboxes import pod_template
from sandpool.testing.watching import until
from sandpool.testing.world import is_ready, owner_of

pytestmark = pytest.mark.kubernetes

CRDS = Path(__file__).parents[2] / "deploy" / "crds"
DURATION = 4  # seconds a lease lasts here
POOL = 8


class Cluster:
    """A namespace of a real cluster with our kinds and a node that runs nothing in it, and controllers as processes."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.directory = directory
        self.client = Client(HttpTransport(load(plane.kubeconfig)))
        self.namespace = f"t-{secrets.token_hex(4)}"
        self.replicas: list[Component] = []

    async def prepare(self) -> None:
        for manifest in sorted(CRDS.glob("*.yaml")):
            with suppress(AlreadyExists):
                await install(self.client, yaml.safe_load(manifest.read_text()))
        await self.client.create(NAMESPACE, new(NAMESPACE, self.namespace))
        node = SimulatedNode(self.client, SystemClock(), namespace=self.namespace)
        self._node = asyncio.create_task(node.run())
        template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
        await self.client.create(SANDBOX_TEMPLATE, template, self.namespace)
        spec = {"replicas": POOL, "sandboxTemplateRef": {"name": "python"}}
        await self.client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, "pool", spec=spec), self.namespace)

    async def start(self) -> Component:
        name = f"controller-{len(self.replicas)}"
        command: list[str | Path] = [
            *(sys.executable, "-m", "sandpool.cli.main", "controller", "--kubeconfig", self.plane.kubeconfig),
            *("--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text"),
            *("--leader-election-namespace", self.namespace, "--leader-elect-lease-duration", f"{DURATION}s"),
            *("--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms"),
        ]
        replica = Component(name, command, self.directory / f"{name}.log")
        self.replicas.append(replica)
        replica.start()
        await asyncio.to_thread(replica.wait_for, "waiting for the lease")
        return replica

    async def close(self) -> None:
        for replica in self.replicas:
            replica.stop(within=20)
        self._node.cancel()
        await asyncio.gather(self._node, return_exceptions=True)
        await self.client.delete(NAMESPACE, self.namespace)
        await self.client.close()

    async def all_of(self, type: ResourceType) -> list[Object]:
        items: list[Object] = (await self.client.list(type, self.namespace))["items"]
        return items

    async def claim(self, *names: str) -> None:
        claims = [new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}}) for name in names]
        await asyncio.gather(*(self.client.create(SANDBOX_CLAIM, each, self.namespace) for each in claims))

    async def served(self, count: int) -> None:
        async def ready() -> bool:
            claims = await self.all_of(SANDBOX_CLAIM)
            return len(claims) == count and all(map(is_ready, claims))

        await until(ready, within=60)

    async def filled(self) -> None:
        async def full() -> bool:
            members = [box for box in await self.all_of(SANDBOX) if owner_of(box) == ("SandboxWarmPool", "pool")]
            return len(members) == POOL and all(map(is_ready, members))

        await until(full, within=60)

    async def check(self) -> None:
        """Every claim has one sandbox of its own, and knows it."""
        claims, boxes = await self.all_of(SANDBOX_CLAIM), await self.all_of(SANDBOX)
        owned = sorted(owner_of(box) for box in boxes if owner_of(box)[0] == "SandboxClaim")
        assert owned == sorted(("SandboxClaim", claim["metadata"]["name"]) for claim in claims)
        owners = {box["metadata"]["name"]: owner_of(box)[1] for box in boxes}
        assert {claim["metadata"]["name"]: owners[claim["status"]["sandbox"]["name"]] for claim in claims} == {
            claim["metadata"]["name"]: claim["metadata"]["name"] for claim in claims
        }

    async def transitions(self) -> int:
        lease = await self.client.get(LEASE, LEASE_NAME, self.namespace)
        count: int = lease["spec"]["leaseTransitions"]
        return count


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(control_plane, tmp_path)
    await cluster.prepare()
    yield cluster
    await cluster.close()


async def test_takeover_in_the_middle_of_bursts(cluster: Cluster) -> None:
    """The leader is told to stop in the middle of a burst, then its successor is killed in the middle of another."""
    first = await cluster.start()
    await asyncio.to_thread(first.wait_for, "leading: ")
    await cluster.filled()
    second = await cluster.start()

    await cluster.claim(*(f"a-{number}" for number in range(12)))
    assert await asyncio.to_thread(first.end) == 0
    stopped = time.monotonic()
    await asyncio.to_thread(second.wait_for, "leading: ")
    # A released lease is looked for every 0.45 s with this retry period; the rest is for a busy machine.
    assert time.monotonic() - stopped < DURATION, "it was released, so nobody waited for it to run out"
    await cluster.served(12)
    await cluster.filled()
    await cluster.check()
    assert "released the lease" in first.tail()

    third = await cluster.start()
    await cluster.claim(*(f"b-{number}" for number in range(12)))
    second.kill()
    killed = time.monotonic()
    await asyncio.to_thread(third.wait_for, "leading: ")
    assert time.monotonic() - killed < DURATION + 10, "it ran out"
    await cluster.served(24)
    await cluster.filled()
    await cluster.check()
    assert await cluster.transitions() >= 2


async def test_a_frozen_leader_writes_nothing_more(cluster: Cluster) -> None:
    first = await cluster.start()
    await asyncio.to_thread(first.wait_for, "leading: ")
    await cluster.filled()
    second = await cluster.start()
    await cluster.claim(*(f"a-{number}" for number in range(6)))
    first.pause()
    await asyncio.to_thread(second.wait_for, "leading: ")
    await cluster.served(6)
    await cluster.filled()
    first.resume()
    assert await asyncio.to_thread(first.wait) == 1
    assert "ended, because another process may lead now" in first.tail()
    await cluster.check()
