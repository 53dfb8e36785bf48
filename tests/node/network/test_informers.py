from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest_asyncio

from sandpool.api.kinds import NETWORK_POLICY, POD, SERVICE
from sandpool.api.resource import Object, SharedObject
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client, MergePatch
from sandpool.node.network.enforcer import Enforcer
from sandpool.node.network.informers import NetworkInformers
from sandpool.node.network.policy import OPEN, PodEndpoint
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.node.network.test_enforcer import enforced


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server.client()
    await server.stop()


@pytest_asyncio.fixture
async def informers(client: Client) -> AsyncIterator[NetworkInformers]:
    informers = NetworkInformers(client, SystemClock(), Random(1), "node")
    running = asyncio.create_task(informers.run())
    await informers.synced()
    yield informers
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def pod(client: Client, name: str, address: str, **labels: str) -> SharedObject:
    spec: Object = {"nodeName": "node", "containers": [{"name": "main", "image": "example.com/image"}]}
    body = new(POD, name, spec=spec)
    body["metadata"]["labels"] = labels
    made = await client.create(POD, body, "default")
    status = {"podIP": address, "podIPs": [{"ip": address}], "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(POD, name, MergePatch({"status": status}), "default", subresource="status")
    return made


async def test_service_has_the_addresses_of_its_pods(client: Client, informers: NetworkInformers) -> None:
    await pod(client, "one", "10.231.0.9", app="box")
    spec = {"selector": {"app": "box"}, "clusterIP": "None"}
    await client.create(SERVICE, new(SERVICE, "box", spec=spec), "default")

    async def known() -> list[str] | None:
        return informers.resolve("box.default.svc.cluster.local.")

    assert await until(known) == ["10.231.0.9"]


async def test_policies_follow_the_labels_of_pods(client: Client, informers: NetworkInformers) -> None:
    async def run(script: str) -> None:
        scripts.append(script)

    scripts: list[str] = []
    enforcer = Enforcer(run, informers.policies, informers.namespaces, SystemClock())
    informers.report_labels(enforcer)
    made = await pod(client, "one", "10.231.0.9")
    await enforcer.add(made["metadata"]["uid"], PodEndpoint("default", "one", "10.231.0.9", {}))
    spec = {"podSelector": {"matchLabels": {"app": "closed"}}, "policyTypes": ["Ingress"]}
    await client.create(NETWORK_POLICY, new(NETWORK_POLICY, "closed", spec=spec), "default")

    async def is_closed() -> bool:
        return enforced(enforcer).ingress.get("10.231.0.9", OPEN) != OPEN

    assert not await is_closed()
    await client.patch(POD, "one", MergePatch({"metadata": {"labels": {"app": "closed"}}}), "default")
    await until(is_closed)
    await client.delete(NETWORK_POLICY, "closed", "default")

    async def is_open() -> bool:
        return not await is_closed()

    await until(is_open)
    await enforcer.close()
    assert "add element inet sandpool ingress { 10.231.0.9 : jump" in "".join(scripts)
