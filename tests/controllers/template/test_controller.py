"""The SandboxTemplate controller on a real API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import NETWORK_POLICY, SANDBOX_TEMPLATE
from sandpool.api.labels import TEMPLATE_REF_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object, SharedObject
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import Caches, InformerSet
from sandpool.controllers.template.controller import TemplateController
from sandpool.engine.events import EventRecorder
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod_template
from sandpool.testing.quiescence import settle
from tests.support.api_objects import owner_reference
from tests.support.manual_time import pass_time

POLICY = "python-network-policy"


class Rig:
    """The controller with its own transport. Users have ``client``, whose requests are not counted."""

    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.client = server.client(name="users")
        self.clock = clock
        self.wire = FaultyTransport(server.client(name="controller").transport)
        client, caches = Client(self.wire), Caches()
        self.informers = InformerSet(caches, client, clock, Random(0))
        self.templates = TemplateController(
            Dependencies.of(client, caches, EventRecorder(client, clock, "test"), clock, Random(0))
        )

    async def settle(self) -> None:
        await settle(self.clock, self.wire)

    async def template(self, **spec: Any) -> SharedObject:
        template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template(), **spec})
        created = await self.client.create(SANDBOX_TEMPLATE, template, "default")
        await self.settle()
        return created

    async def patch(self, body: Object) -> None:
        await self.client.patch(SANDBOX_TEMPLATE, "python", MergePatch(body), "default")
        await self.settle()

    async def policy(self) -> SharedObject | None:
        try:
            return await self.client.get(NETWORK_POLICY, POLICY, "default")
        except NotFound:
            return None

    def writes(self) -> list[str]:
        """Return the writes of the controller since the last call."""
        requests, self.wire.requests = self.wire.requests, []
        return [
            f"{request.method} {request.path.rpartition('/default/')[2]}"
            for request in requests
            if request.method != "GET"
        ]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    clock = ManualClock()
    server = ApiServer(tmp_path, clock=clock)
    await server.start()
    rig = Rig(server, clock)
    tasks = [asyncio.create_task(rig.informers.run())]
    await rig.informers.synced()
    tasks.append(asyncio.create_task(rig.templates.controller.run()))
    yield rig
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()


async def test_template_gets_its_label_and_its_policy(rig: Rig) -> None:
    template = await rig.template()

    labels = (await rig.client.get(SANDBOX_TEMPLATE, "python", "default"))["metadata"]["labels"]
    assert labels == {TEMPLATE_REF_HASH: name_hash("python")}
    policy = await rig.policy()
    assert policy is not None
    assert policy["metadata"]["ownerReferences"] == [owner_reference(template, controller=True, block=True)]
    assert policy["spec"]["podSelector"] == {"matchLabels": {TEMPLATE_REF_HASH: name_hash("python")}}
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert rig.writes() == ["PATCH sandboxtemplates/python", "POST networkpolicies"]
    assert rig.templates.controller.reconciles == 1, "its own writes enqueue nothing"


async def test_changed_policy_is_written_once(rig: Rig) -> None:
    await rig.template()
    rig.writes()
    await rig.patch({"spec": {"networkPolicy": {"egress": [{"ports": [{"port": 443}]}]}}})
    policy = await rig.policy()
    assert policy is not None
    assert policy["spec"]["egress"] == [{"ports": [{"port": 443, "protocol": "TCP"}]}]
    assert "ingress" not in policy["spec"]
    assert rig.writes() == [f"PATCH networkpolicies/{POLICY}"]

    await rig.patch({"metadata": {"labels": {"color": "red"}}})
    await rig.patch({"spec": {"envVarsInjectionPolicy": "Allowed"}})
    assert rig.writes() == []


async def test_policy_changed_or_deleted_by_others_is_restored(rig: Rig) -> None:
    await rig.template()
    before = await rig.policy()
    assert before is not None
    await rig.client.patch(NETWORK_POLICY, POLICY, MergePatch({"spec": {"egress": None}}), "default")
    await rig.settle()
    after = await rig.policy()
    assert after is not None and after["spec"] == before["spec"]

    await rig.client.delete(NETWORK_POLICY, POLICY, "default")
    await rig.settle()
    assert await rig.policy() is not None


async def test_unmanaged_template_loses_its_policy(rig: Rig) -> None:
    await rig.template()
    rig.writes()
    await rig.patch({"spec": {"networkPolicyManagement": "Unmanaged"}})
    assert await rig.policy() is None
    assert rig.writes() == [f"DELETE networkpolicies/{POLICY}"]

    await rig.patch({"spec": {"networkPolicyManagement": "Managed"}})
    assert await rig.policy() is not None


async def test_foreign_policy_is_left_alone_and_is_an_error(rig: Rig) -> None:
    foreign = new(NETWORK_POLICY, POLICY, spec={"podSelector": {}})
    created = await rig.client.create(NETWORK_POLICY, foreign, "default")
    await rig.template()
    await pass_time(rig.clock, 1, rig.wire)
    assert rig.writes() == ["PATCH sandboxtemplates/python"]
    assert rig.templates.controller.failures > 1
    assert await rig.policy() == created

    await rig.client.delete(NETWORK_POLICY, POLICY, "default")
    await rig.settle()
    policy = await rig.policy()
    assert policy is not None and policy["metadata"]["ownerReferences"]


async def test_foreign_policy_is_ignored_by_an_unmanaged_template(rig: Rig) -> None:
    foreign = new(NETWORK_POLICY, POLICY, spec={"podSelector": {}})
    created = await rig.client.create(NETWORK_POLICY, foreign, "default")
    await rig.template(networkPolicyManagement="Unmanaged")
    assert rig.templates.controller.failures == 0
    assert await rig.policy() == created


async def test_deleted_template_leaves_no_state_behind(rig: Rig) -> None:
    await rig.template()
    rig.writes()
    await rig.client.delete(SANDBOX_TEMPLATE, "python", "default", propagation_policy="Orphan")
    await rig.settle()
    await rig.client.delete(NETWORK_POLICY, POLICY, "default")
    await rig.settle()
    assert rig.writes() == []
