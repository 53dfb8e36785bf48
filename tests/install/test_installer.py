"""Installation by server-side apply: valid, idempotent, and careful with foreign objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandpool.api.kinds import (
    API_SERVICE,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    SANDBOX,
    SANDPOOL,
    SERVICE,
    STATEFUL_SET,
)
from sandpool.api.resource import Object
from sandpool.api.sandbox_spec import Profile
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install import apiserver, manifests
from sandpool.install.errors import InstallError
from sandpool.install.flow import FLOW_SCHEMA
from sandpool.install.installer import Installer, title
from sandpool.install.manifests import InstallOptions
from sandpool.install.monitoring import PROMETHEUS_RULE, SERVICE_MONITOR
from sandpool.install.names import APISERVER, CONTROLLER
from sandpool.install.names import NAMESPACE as SPACE
from sandpool.install.owners import renewed
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request, WatchEvent
from sandpool.server.api_server import ApiServer
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod, pod_template
from tests.support.api_objects import definition, owner_reference
from tests.support.custom_kinds import install as define
from tests.support.go_cluster import foreign_workload

LEFT_OUT = "skipped, the cluster does not have the kind"


class Told(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server.client()
    await server.stop()


async def install(
    client: Client, *, profile: Profile = "full", router: bool = True, dry_run: bool = False, force: bool = False
) -> Told:
    told = Told()
    objects = chosen(InstallOptions(profile=profile), router=router, monitored=False)
    await Installer(client, SystemClock(), told, dry_run=dry_run, force=force).install(objects)
    return told


async def test_every_object_passes_strict_validation_and_is_reported(client: Client) -> None:
    told = await install(client)
    objects = chosen(InstallOptions(profile="full"), router=True, monitored=False)
    # The embedded API has our kinds already, and no queues of its own.
    verbs = {CUSTOM_RESOURCE_DEFINITION.kind: "unchanged", FLOW_SCHEMA.kind: LEFT_OUT}
    expected = [f"{title(each)} {verbs.get(each['kind'], 'created')}" for each in objects]
    expected.insert(1 + len(SANDPOOL), "4 kinds are served")
    assert told == expected


async def test_second_install_changes_nothing(client: Client) -> None:
    await install(client)
    before = await client.get(DEPLOYMENT, CONTROLLER, SPACE)
    told = await install(client)
    assert {line.rsplit(" ", 1)[1] for line in told if LEFT_OUT not in line} == {"unchanged", "served"}
    assert await client.get(DEPLOYMENT, CONTROLLER, SPACE) == before


async def test_dry_run_changes_nothing(client: Client) -> None:
    told = await install(client, dry_run=True)
    assert f"deployment.apps/{CONTROLLER} created (dry run)" in told
    with pytest.raises(NotFound):
        await client.get(NAMESPACE, SPACE)


async def test_new_image_is_a_change(client: Client) -> None:
    await install(client)
    told = Told()
    objects = chosen(InstallOptions(image="example.com/sandpool:2", profile="full"), router=False, monitored=False)
    await Installer(client, SystemClock(), told).install(objects)
    assert [line for line in told if line.endswith(" configured")] == [f"deployment.apps/{CONTROLLER} configured"]


async def test_stateful_set_that_cannot_be_changed_is_made_anew_and_its_pod_runs_on(client: Client) -> None:
    objects = [manifests.namespace(), *apiserver.objects("example.com/sandpool:1")]
    (wanted,) = [each for each in objects if each["kind"] == STATEFUL_SET.kind]
    ordered = {key: value for key, value in wanted["spec"].items() if key != "podManagementPolicy"}
    former = [{**each, "spec": ordered} if each is wanted else each for each in objects]
    objects = [each for each in objects if each["kind"] != API_SERVICE.kind]  # the embedded API has no such kind
    former = [each for each in former if each["kind"] != API_SERVICE.kind]
    await Installer(client, SystemClock(), Told()).install(former)
    owner = await client.get(STATEFUL_SET, APISERVER, SPACE)
    running = pod(f"{APISERVER}-0", metadata={"ownerReferences": [owner_reference(owner)]})
    uid = (await client.create(POD, running, SPACE))["metadata"]["uid"]

    told = Told()
    await Installer(client, SystemClock(), told, dry_run=True).install(objects)
    assert await client.get(STATEFUL_SET, APISERVER, SPACE) == owner
    told.clear()
    await Installer(client, SystemClock(), told).install(objects)
    assert f"statefulset.apps/{APISERVER} created" in told
    made = await client.get(STATEFUL_SET, APISERVER, SPACE)
    assert made["spec"]["podManagementPolicy"] == "Parallel"
    left = (await client.get(POD, f"{APISERVER}-0", SPACE))["metadata"]
    assert (left["uid"], "deletionTimestamp" in left, "ownerReferences" in left) == (uid, False, False)

    told.clear()
    await Installer(client, SystemClock(), told).install(objects)
    assert f"statefulset.apps/{APISERVER} unchanged" in told


async def test_fields_of_other_managers_are_taken_over_only_with_force(client: Client) -> None:
    await install(client)
    await client.patch(DEPLOYMENT, CONTROLLER, MergePatch({"spec": {"replicas": 7}}), SPACE, field_manager="another")
    with pytest.raises(
        InstallError, match=r"has fields of other field managers:(.|\n)*\.spec\.replicas(.|\n)*--force takes over"
    ):
        await install(client)
    await install(client, force=True)
    assert (await client.get(DEPLOYMENT, CONTROLLER, SPACE))["spec"]["replicas"] == 2


async def test_monitoring_is_installed_where_its_kinds_exist(client: Client) -> None:
    for type in (SERVICE_MONITOR, PROMETHEUS_RULE):
        await define(client, definition(type))
    told = Told()
    objects = chosen(InstallOptions(profile="full"), router=False, monitored=True)
    await Installer(client, SystemClock(), told).install(objects)
    assert told[-2:] == [
        f"servicemonitor.monitoring.coreos.com/{CONTROLLER} created",
        f"prometheusrule.monitoring.coreos.com/{CONTROLLER} created",
    ]


async def test_missing_monitoring_kinds_are_reported(client: Client) -> None:
    objects = chosen(InstallOptions(profile="full"), router=False, monitored=True)
    with pytest.raises(InstallError, match="install the Prometheus operator first"):
        await Installer(client, SystemClock(), Told()).install(objects)


# --- from another installation ----------------------------------------------------------------------------------------


async def test_foreign_deployment_is_replaced_only_with_force(client: Client) -> None:
    await foreign_workload(client)
    with pytest.raises(InstallError, match="belongs to another installation\n--force replaces it"):
        await install(client)
    with pytest.raises(NotFound):  # nothing was begun
        await client.get(CLUSTER_ROLE, CONTROLLER)
    told = await install(client, force=True)

    assert f"deployment.apps/{CONTROLLER} of another installation deleted" in told
    (runs,) = (await client.get(DEPLOYMENT, CONTROLLER, SPACE))["spec"]["template"]["spec"]["containers"]
    assert "command" not in runs
    assert runs["args"] == ["controller", "--leader-elect=true"]
    for type, name, namespace in (
        (CLUSTER_ROLE, "agent-sandbox-controller-extensions", None),
        (CLUSTER_ROLE_BINDING, "agent-sandbox-controller-extensions", None),
        (SERVICE, "agent-sandbox-webhook-service", SPACE),
    ):
        with pytest.raises(NotFound):
            await client.get(type, name, namespace)
    again = [line for line in await install(client) if LEFT_OUT not in line]
    assert {line.rsplit(" ", 1)[1] for line in again} == {"unchanged", "served"}


# --- between the profiles -------------------------------------------------------------------------------------------


class WritingMeanwhile:
    """A transport that creates a foreign pod just before a Deployment is applied."""

    def __init__(self, client: Client, late: Object) -> None:
        self.client = client
        self.late = late

    async def request(self, request: Request) -> Any:
        if request.path.endswith(f"/deployments/{CONTROLLER}") and request.method == "PATCH":
            await self.client.create(POD, self.late, "live")
        return await self.client.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.client.transport.stream(request)

    async def close(self) -> None:
        pass


async def test_owner_references_are_renewed_before_their_version_is_removed(client: Client) -> None:
    """Kubernetes believes for a while that the version is served, hears that there is no such owner, and deletes."""
    await client.create(NAMESPACE, new(NAMESPACE, "live"))
    box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "live")
    old = {**owner_reference(box, controller=True), "apiVersion": f"{SANDBOX.group}/v1alpha1"}
    await client.create(POD, pod("early", metadata={"ownerReferences": [old]}), "live")
    wire = FaultyTransport(WritingMeanwhile(client, pod("late", metadata={"ownerReferences": [old]})))
    await install(Client(wire), force=True)
    paths = [request.path for request in wire.requests if request.method == "PATCH"]
    definition = next(path for path in paths if path.endswith(f"/{SANDBOX.group_resource}"))
    assert paths.index("/api/v1/namespaces/live/pods/early") < paths.index(definition)
    for name in ("early", "late"):
        assert renewed(await client.get(POD, name, "live")) is None


async def test_switching_profiles_loses_no_field(client: Client) -> None:
    box = new(SANDBOX, "box", spec={"podTemplate": pod_template(spec={"hostname": "here"})})
    full = await client.create(SANDBOX, box, "default")
    await install(client, profile="lean", force=True)
    lean = await client.get(SANDBOX, "box", "default")
    assert lean["spec"] == full["spec"]
    await install(client, profile="full")
    assert (await client.get(SANDBOX, "box", "default"))["spec"] == full["spec"]


async def test_switch_that_would_lose_a_field_is_refused(client: Client) -> None:
    await install(client, profile="lean", force=True)
    containers = [{"name": "main", "image": "i", "fieldOfTomorrow": 1}]
    box = new(SANDBOX, "box", spec={"podTemplate": {"spec": {"containers": containers, "hostUsers": "maybe"}}})
    await client.create(SANDBOX, box, "default")
    with pytest.raises(InstallError) as refused:
        await install(client, profile="full", force=True)
    assert "sandbox default/box: " in str(refused.value)
    assert "spec.podTemplate.spec.containers[0].fieldOfTomorrow" in str(refused.value)
    assert "spec.podTemplate.spec.hostUsers" in str(refused.value)
    (kept,) = (await client.get(SANDBOX, "box", "default"))["spec"]["podTemplate"]["spec"]["containers"]
    assert kept["fieldOfTomorrow"] == 1
