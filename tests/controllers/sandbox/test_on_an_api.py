"""Plans performed on an API: it accepts them, and the next plan finds what it expects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SERVICE, SERVICE_ACCOUNT
from sandpool.api.labels import SANDBOX_FIELD_MANAGER
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.api.views import PodView, SandboxView, ServiceView, VolumeClaimView
from sandpool.controllers.options import SandboxOptions
from sandpool.controllers.sandbox.expiry import ExpiryPlan
from sandpool.controllers.sandbox.plan import ChildrenPlan, Observed, PerformResult, compute_status, plan
from sandpool.controllers.writer import Create, Patch, Write
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod, pod_template
from tests.support.sandbox_objects import pod_status

NAMESPACE = "default"
START = datetime(2026, 1, 2, tzinfo=UTC)


class Controller:
    """The plainest possible: reads everything, performs a plan, counts its writes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.now = START
        self.writes: list[str] = []

    async def run(self) -> SharedObject:
        """Reconcile the sandbox ``box`` once and return it."""
        observed = await self._observe()
        planned = plan(observed, SandboxOptions(), self.now)
        if isinstance(planned, ChildrenPlan):
            status_plan = compute_status(observed, planned, await self._perform(planned), SandboxOptions(), self.now)
            assert not status_plan.errors
            await self._write_status(status_plan.status_patch)
        elif isinstance(planned, ExpiryPlan):
            for write in (*planned.children, *filter(None, [planned.sandbox])):
                await self._write(write)
            await self._write_status(planned.status_patch)
        else:
            await self._write_status(planned.status_patch)
        return await self.client.get(SANDBOX, "box", NAMESPACE)

    async def _observe(self) -> Observed:
        sandbox = SandboxView.from_object(await self.client.get(SANDBOX, "box", NAMESPACE))
        pods = [PodView.from_object(each) for each in await self._list(POD)]
        services = [ServiceView.from_object(each) for each in await self._list(SERVICE)]
        claims = [VolumeClaimView.from_object(each) for each in await self._list(PERSISTENT_VOLUME_CLAIM)]
        return Observed(
            sandbox,
            tuple(pods),
            next((each for each in pods if each.name == sandbox.pod_name), None),
            next((each for each in services if each.name == sandbox.name), None),
            {each.name: each for each in claims},
        )

    async def _list(self, type: ResourceType) -> list[Object]:
        items: list[Object] = (await self.client.list(type, NAMESPACE))["items"]
        return items

    async def _perform(self, children: ChildrenPlan) -> PerformResult:
        for write in children.volumes.writes:
            await self._write(write)
        if children.pod.repair is not None:
            await self._write(children.pod.repair)
        found = children.pod.pod
        if children.pod.write is not None:
            answer = await self._write(children.pod.write)
            found = PodView.from_object(answer)
        if children.service is not None and children.service.write is not None:
            await self._write(children.service.write)
        return PerformResult(found)

    async def _write(self, write: Write) -> SharedObject:
        if isinstance(write, Create):
            self.writes.append(f"create {write.type.plural}")
            return await self.client.create(write.type, write.object, NAMESPACE, field_manager=SANDBOX_FIELD_MANAGER)
        if isinstance(write, Patch):
            self.writes.append(f"patch {write.type.plural}")
            return await self.client.patch(write.type, write.name, MergePatch(write.body), NAMESPACE)
        self.writes.append(f"delete {write.type.plural}")
        return await self.client.delete(write.type, write.name, NAMESPACE, uid=write.uid)

    async def _write_status(self, body: Object | None) -> None:
        if body is not None:
            self.writes.append("patch sandboxes/status")
            await self.client.patch(SANDBOX, "box", MergePatch(body), NAMESPACE, subresource="status")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    client = server.client()
    await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, "default"), NAMESPACE)
    yield client
    await server.stop()


@pytest.fixture
def controller(client: Client) -> Controller:
    return Controller(client)


async def make(client: Client, **spec: Any) -> SharedObject:
    return await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template(), **spec}), NAMESPACE)


async def report(client: Client, status: Object, name: str = "box") -> None:
    """Report a pod status as a kubelet does."""
    await client.patch(POD, name, MergePatch({"status": status}), NAMESPACE, subresource="status")


def ready(sandbox: SharedObject) -> tuple[str, str]:
    (found,) = [each for each in sandbox["status"]["conditions"] if each["type"] == "Ready"]
    return found["status"], found["message"]


async def patch(client: Client, **spec: Any) -> None:
    await client.patch(SANDBOX, "box", MergePatch({"spec": spec}), NAMESPACE)


READY = pod_status("Running", ready=True, ips=["10.0.0.1"])


async def test_launch_creates_volume_claims_pod_and_service(client: Client, controller: Controller) -> None:
    ports = [{"containerPort": 8080, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}]
    await make(
        client,
        service=True,
        podTemplate=pod_template(
            labels={"a": "1"}, spec={"containers": [{"name": "main", "image": "example.com/image:1", "ports": ports}]}
        ),
        volumeClaimTemplates=[
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    )
    await controller.run()
    assert controller.writes == ["create persistentvolumeclaims", "create pods", "create services"]
    await report(client, pod_status("Pending"))
    await controller.run()
    await report(client, READY)
    sandbox = await controller.run()
    assert controller.writes[3:] == ["patch sandboxes/status"]
    assert ready(sandbox) == ("True", "Pod is Ready; Service Exists")
    assert sandbox["status"]["podIPs"] == ["10.0.0.1"]
    assert sandbox["status"]["serviceFQDN"] == "box.default.svc.cluster.local"
    await controller.run()
    assert len(controller.writes) == 4
    service = await client.get(SERVICE, "box", NAMESPACE)
    assert [port["name"] for port in service["spec"]["ports"]] == ["p-53-udp", "http"]


async def test_plain_launch_costs_two_writes(client: Client, controller: Controller) -> None:
    await make(client)
    await controller.run()
    await report(client, READY)
    assert ready(await controller.run()) == ("True", "Pod is Ready")
    assert controller.writes == ["create pods", "patch sandboxes/status"]


async def test_service_follows_changed_ports_and_the_service_field(client: Client, controller: Controller) -> None:
    def with_ports(*numbers: int) -> Object:
        ports = [{"containerPort": number} for number in numbers]
        return pod_template(spec={"containers": [{"name": "main", "image": "example.com/image:1", "ports": ports}]})

    await make(client, service=True, podTemplate=with_ports(80))
    await controller.run()
    controller.writes.clear()
    for numbers in ((80, 90), (90,), ()):
        await patch(client, podTemplate=with_ports(*numbers))
        await controller.run()
        service = await client.get(SERVICE, "box", NAMESPACE)
        assert [port["port"] for port in service["spec"].get("ports", [])] == list(numbers)
    assert controller.writes == ["patch services"] * 3
    await patch(client, service=False)
    await controller.run()
    assert controller.writes[3:] == ["delete services"]


async def test_adoptable_pod_and_service_are_adopted(client: Client, controller: Controller) -> None:
    adoptable = {"labels": {"agents.x-k8s.io/adoptable": "true", "mine": "1"}}
    await client.create(POD, pod("prepared", metadata=adoptable), NAMESPACE)
    service = {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 1}]}
    await client.create(SERVICE, new(SERVICE, "box", metadata=adoptable, spec=service), NAMESPACE)
    await make(client, service=True)
    annotation = {"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "prepared"}}}
    await client.patch(SANDBOX, "box", MergePatch(annotation), NAMESPACE)
    await report(client, READY, "prepared")
    assert ready(await controller.run()) == ("True", "Pod is Ready; Service Exists")
    assert controller.writes == ["patch pods", "patch services", "patch sandboxes/status"]
    await controller.run()
    assert len(controller.writes) == 3
    adopted = await client.get(SERVICE, "box", NAMESPACE)
    assert list(adopted["spec"]["selector"]) == ["agents.x-k8s.io/sandbox-name-hash"]
    assert "ports" not in adopted["spec"]


async def test_sandbox_is_suspended_resumed_and_expired(client: Client, controller: Controller) -> None:
    await make(client)
    await controller.run()
    await report(client, READY)
    await controller.run()
    await patch(client, operatingMode="Suspended")
    assert ready(await controller.run()) == ("False", "Sandbox is suspending")
    pods = [each["metadata"]["name"] for each in (await client.list(POD, NAMESPACE))["items"]]
    for name in pods:
        await client.delete(POD, name, NAMESPACE, grace_period_seconds=0)
    assert ready(await controller.run()) == ("False", "Sandbox is suspended")
    await patch(client, operatingMode="Running")
    await controller.run()
    await report(client, READY)
    assert ready(await controller.run()) == ("True", "Pod is Ready")

    await patch(client, shutdownTime="2026-01-02T00:01:00Z")
    await controller.run()
    controller.now += timedelta(minutes=1)
    assert ready(await controller.run()) == ("False", "Sandbox has expired")
    sandbox = await controller.run()
    assert set(sandbox["status"]) == {"conditions"}
    with pytest.raises(NotFound):
        await client.get(POD, "box", NAMESPACE)

    await patch(client, shutdownPolicy="Delete")
    with pytest.raises(NotFound):
        await controller.run()
