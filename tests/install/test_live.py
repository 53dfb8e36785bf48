"""Definitions change on a real Kubernetes while controllers work, and no object is lost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SANDPOOL,
)
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.api.sandbox_spec import Profile
from sandpool.api.schema.crds import crd
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.errors import InstallError
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions
from sandpool.install.owners import renewed
from sandpool.kube.client import ApplyPatch, Client, MergePatch
from sandpool.kube.errors import AlreadyExists
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from sandpool.testing.world import owner_of
from tests.support.api_objects import owner_reference
from tests.support.go_cluster import foreign_definition, foreign_definitions, foreign_workload
from tests.support.installed_cluster import Cluster

pytestmark = pytest.mark.kubernetes

SPACE = "live"


@pytest.fixture
async def client(cluster: Cluster) -> Client:
    """The namespace is left to the control plane's end: pods in it wait for a node that is gone."""
    with suppress(AlreadyExists):
        await cluster.client.create(NAMESPACE, new(NAMESPACE, SPACE))
    return cluster.client


async def install(
    client: Client, *, profile: Profile = "full", force: bool = False, dry_run: bool = False
) -> list[str]:
    told: list[str] = []
    objects = chosen(InstallOptions(profile=profile), router=False, monitored=False)
    await Installer(client, SystemClock(), told.append, force=force, dry_run=dry_run).install(objects)
    return told


def pod(**fields: Any) -> Object:
    """A pod template with a port without protocol: only the full profile fills in the default."""
    container = {"name": "main", "image": "example.com/image:1", "ports": [{"containerPort": 8888}], **fields}
    return {"spec": {"containers": [container]}}


async def takes(client: Client, wanted: Profile) -> None:
    """Wait until the API works by the definitions it was given last."""

    async def probe() -> bool:
        box = new(SANDBOX, "probe", spec={"podTemplate": pod(fieldOfTomorrow=1)})
        made = await client.create(SANDBOX, box, SPACE, dry_run=True)
        (container,) = made["spec"]["podTemplate"]["spec"]["containers"]
        return ("fieldOfTomorrow" in container) is (wanted == "lean")

    await until(probe, within=60)


async def pool(client: Client, name: str, replicas: int) -> None:
    await client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, name, spec={"podTemplate": pod()}), SPACE)
    spec = {"replicas": replicas, "sandboxTemplateRef": {"name": name}, "updateStrategy": {"type": "Recreate"}}
    await client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, name, spec=spec), SPACE)
    await filled(client, name, replicas)


async def filled(client: Client, name: str, count: int) -> None:
    async def probe() -> bool:
        boxes = (await client.list(SANDBOX, SPACE))["items"]
        members = [box for box in boxes if owner_of(box) == ("SandboxWarmPool", name)]
        return len(members) == count and all(map(is_ready, members))

    await until(probe, within=60)


async def claim(client: Client, name: str, pool: str) -> None:
    await client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": pool}}), SPACE)

    async def served() -> bool:
        return is_ready(await client.get(SANDBOX_CLAIM, name, SPACE))

    await until(served, within=60)


async def uids(client: Client, type: ResourceType) -> set[str]:
    return {each["metadata"]["uid"] for each in (await client.list(type, SPACE))["items"]}


async def test_profiles_are_switched_while_pools_serve_claims(cluster: Cluster, client: Client) -> None:
    """Both ways: fields stay, no member is replaced, claims are served warm before, between and after."""
    await install(client)
    async with cluster.controllers(SPACE):
        await pool(client, "early", 2)
        before = await client.get(SANDBOX_TEMPLATE, "early", SPACE)
        boxes, pods = await uids(client, SANDBOX), await uids(client, POD)

        assert "customresourcedefinition.apiextensions.k8s.io/sandboxes.agents.x-k8s.io configured" in await install(
            client, profile="lean"
        )
        await takes(client, "lean")
        assert await client.get(SANDBOX_TEMPLATE, "early", SPACE) == before
        await claim(client, "between", "early")
        await filled(client, "early", 2)
        assert boxes <= await uids(client, SANDBOX)
        assert pods <= await uids(client, POD)

        await pool(client, "late", 2)
        boxes, pods = await uids(client, SANDBOX), await uids(client, POD)
        await install(client, profile="full")
        await takes(client, "full")
        await claim(client, "after", "late")
        await filled(client, "late", 2)
        assert boxes <= await uids(client, SANDBOX)
        assert pods <= await uids(client, POD)
        late = await client.get(SANDBOX_TEMPLATE, "late", SPACE)
        (container,) = late["spec"]["podTemplate"]["spec"]["containers"]
        assert container["ports"] == [{"containerPort": 8888, "protocol": "TCP"}]


async def test_template_can_be_applied_again_after_a_switch(client: Client) -> None:
    """A list is merged by key in one profile and replaced in the other; field ownership survives the switch."""

    async def apply(image: str) -> SharedObject:
        template = new(SANDBOX_TEMPLATE, "mine", spec={"podTemplate": pod(image=image)})
        return await client.patch(SANDBOX_TEMPLATE, "mine", ApplyPatch(template), SPACE, field_manager="me")

    profiles: tuple[Profile, ...] = ("full", "lean", "full")
    for number, profile in enumerate(profiles):
        await install(client, profile=profile)
        await takes(client, profile)
        applied = await apply(f"example.com/image:{number}")
        (container,) = applied["spec"]["podTemplate"]["spec"]["containers"]
        assert container["image"] == f"example.com/image:{number}"


async def test_field_unknown_to_the_full_definitions_is_not_lost(client: Client) -> None:
    await install(client, profile="lean")
    await takes(client, "lean")
    box = new(SANDBOX, "box", spec={"podTemplate": pod(fieldOfTomorrow=1, workingDir="/work")})
    made = await client.create(SANDBOX, box, SPACE)
    with pytest.raises(InstallError, match=r"sandbox live/box: .*fieldOfTomorrow(.|\n)*stay with --profile lean"):
        await install(client, profile="full")
    assert await client.get(SANDBOX, "box", SPACE) == made

    without = {"spec": {"podTemplate": pod(workingDir="/work")}}
    await client.patch(SANDBOX, "box", MergePatch(without), SPACE)
    await install(client, profile="full")
    await takes(client, "full")
    (container,) = (await client.get(SANDBOX, "box", SPACE))["spec"]["podTemplate"]["spec"]["containers"]
    assert container["workingDir"] == "/work"


async def seen(client: Client) -> str:
    """Describe the objects, for the message of a failed assertion."""
    lines = []
    for type in (SANDBOX, POD):
        for each in (await client.list(type, SPACE))["items"]:
            metadata = each["metadata"]
            owners = [f"{owner['apiVersion']} {owner['name']}" for owner in metadata.get("ownerReferences") or ()]
            going = f", deleted {metadata['deletionTimestamp']}" if "deletionTimestamp" in metadata else ""
            writers = [f"{each['manager']} {each['time']}" for each in metadata.get("managedFields") or ()]
            lines.append(f"{type.kind} {metadata['name']} of {owners}{going}, written by {writers}")
    for type in SANDPOOL:
        definition = await client.get(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
        versions = [each["name"] for each in definition["spec"]["versions"]]
        conditions = {each["type"]: each["status"] for each in definition["status"].get("conditions") or ()}
        lines.append(f"{type.group_resource} {versions} {definition['spec']['conversion']['strategy']} {conditions}")
    return "there is:\n" + "\n".join(lines)


async def test_installation_of_the_go_controller_is_taken_over_and_given_back(client: Client) -> None:
    await foreign_definitions(client)
    await foreign_workload(client)
    box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod()}), SPACE)
    reference = {**owner_reference(box, controller=True), "apiVersion": f"{SANDBOX.group}/v1alpha1"}
    await client.create(POD, new(POD, "box", metadata={"ownerReferences": [reference]}, **pod()), SPACE)
    definition = await client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource)
    with pytest.raises(InstallError, match="belongs to another installation\n--force replaces it"):
        await install(client)
    told = await install(client, force=True, dry_run=True)
    assert f"deployment.apps/{names.CONTROLLER} of another installation deleted (dry run)" in told
    assert all(line.endswith(" (dry run)") for line in told)
    assert await client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource) == definition

    told = await install(client, force=True)
    assert "conversion webhook of sandboxes.agents.x-k8s.io removed" in told
    assert f"deployment.apps/{names.CONTROLLER} of another installation deleted" in told
    assert "owner references of 1 pods changed to the served version" in told, await seen(client)
    assert renewed(await client.get(POD, "box", SPACE)) is None, await seen(client)
    spec = (await client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource))["spec"]
    assert (spec["versions"], spec["conversion"]) == (crd(SANDBOX)["spec"]["versions"], {"strategy": "None"})
    assert await client.get(SANDBOX, "box", SPACE) == box, await seen(client)
    assert (await client.get(DEPLOYMENT, names.CONTROLLER, names.NAMESPACE))["spec"]["replicas"] == 2
    again = await install(client)
    assert {line.rsplit(" ", 1)[1] for line in again} == {"unchanged", "served"}, again

    for type in SANDPOOL:  # its manifests again
        given = ApplyPatch(foreign_definition(type))
        await client.patch(CUSTOM_RESOURCE_DEFINITION, type.group_resource, given, field_manager="kubectl", force=True)
    assert await client.get(SANDBOX, "box", SPACE) == box, await seen(client)
    await install(client, force=True)


async def test_objects_stored_in_an_old_version_need_no_takeover(client: Client) -> None:
    await foreign_definitions(client)
    stored = MergePatch({"status": {"storedVersions": ["v1alpha1", "v1beta1"]}})
    await client.patch(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource, stored, subresource="status")
    with pytest.raises(InstallError, match="may still be stored as v1alpha1"):
        await install(client, force=True)
