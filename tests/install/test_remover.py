"""Uninstallation removes all own objects, and none in use without a flag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandpool.api.kinds import (
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_WARM_POOL,
    SANDPOOL,
)
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install.errors import InstallError
from sandpool.install.flow import FLOW_SCHEMA
from sandpool.install.installer import Installer, title, type_of
from sandpool.install.manifests import InstallOptions
from sandpool.install.names import CONTROLLER
from sandpool.install.names import NAMESPACE as SPACE
from sandpool.install.remover import Remover
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.support.api_objects import owner_reference

# The embedded API has no queues of its own that could be said anything about.
OBJECTS = [each for each in chosen(InstallOptions(), router=True, monitored=False) if each["kind"] != FLOW_SCHEMA.kind]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a cluster with everything installed."""
    server = ApiServer(tmp_path)
    await server.start()
    await Installer(server.client(), SystemClock(), lambda line: None, force=True).install(OBJECTS)
    yield server.client()
    await server.stop()


async def remove(client: Client, **options: Any) -> list[str]:
    told: list[str] = []
    await Remover(client, SystemClock(), told.append, **options).remove(
        chosen(InstallOptions(), router=True, monitored=True)
    )
    return told


async def left(client: Client) -> list[str]:
    found = []
    for each in OBJECTS:
        try:
            await client.get(type_of(each), each["metadata"]["name"], each["metadata"].get("namespace"))
        except NotFound:
            continue
        found.append(each["kind"])
    return found


async def box(client: Client, name: str, **metadata: Any) -> None:
    spec = {"podTemplate": pod_template()}
    await client.create(SANDBOX, new(SANDBOX, name, metadata=metadata, spec=spec), "default")


async def test_uninstall_removes_everything_and_the_controller_first(client: Client) -> None:
    told = await remove(client)
    assert told[:2] == [f"deployment.apps/{CONTROLLER} deleted", "deployment.apps/sandbox-router-deployment deleted"]
    assert told[-1] == f"namespace/{SPACE} deleted"

    async def nothing() -> bool:
        return await left(client) == []

    await until(nothing)
    assert await remove(client) == []


async def test_objects_of_another_tool_are_kept(client: Client) -> None:
    """Those of the Go controller, for example, have the same names."""
    theirs = [each for each in OBJECTS if each["kind"] in ("CustomResourceDefinition", "ClusterRole")]
    for each in theirs:
        await client.delete(type_of(each), each["metadata"]["name"])

    async def gone() -> bool:
        return set(await left(client)).isdisjoint(each["kind"] for each in theirs)

    await until(gone)
    for each in theirs:
        await client.create(type_of(each), each)
    await until(partial(is_served, client))
    claim = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "pool"}})
    await client.create(SANDBOX_CLAIM, claim, "default")

    told = await remove(client)
    assert sorted(line for line in told if " kept: " in line) == sorted(
        f"{title(each)} kept: `sandpool install` did not make it" for each in theirs
    )

    async def only_theirs() -> bool:
        return sorted(await left(client)) == sorted(each["kind"] for each in theirs)

    await until(only_theirs)
    assert await client.get(SANDBOX_CLAIM, "mine", "default")


async def is_served(client: Client) -> bool:
    try:
        await client.list(SANDBOX_CLAIM)
    except NotFound:
        return False
    return True


async def test_existing_claims_block_the_uninstall(client: Client) -> None:
    claim = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "pool"}})
    await client.create(SANDBOX_CLAIM, claim, "default")
    with pytest.raises(
        InstallError, match="would lose their sandboxes: default/mine\nDelete them first, pass --with-cl"
    ):
        await remove(client)
    assert len(await left(client)) == len(OBJECTS)


async def test_standalone_sandboxes_block_the_uninstall(client: Client) -> None:
    await box(client, "alone")
    with pytest.raises(InstallError, match="belong to no pool and would be deleted: default/alone"):
        await remove(client)
    await remove(client, with_claims=True)
    with pytest.raises(NotFound):
        await client.list(SANDBOX)


async def test_pool_members_do_not_block_the_uninstall(client: Client) -> None:
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"sandboxTemplateRef": {"name": "python"}})
    owner = await client.create(SANDBOX_WARM_POOL, pool, "default")
    reference = owner_reference(owner, controller=True) | {"apiVersion": "extensions.agents.x-k8s.io/v1alpha1"}
    await box(client, "member", ownerReferences=[reference])
    await remove(client)
    with pytest.raises(NotFound):
        await client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource)


async def test_kinds_can_be_kept_with_their_objects(client: Client) -> None:
    await box(client, "alone")
    await remove(client, keep_kinds=True)
    assert await client.get(SANDBOX, "alone", "default")

    async def only_kinds() -> bool:
        return await left(client) == ["CustomResourceDefinition"] * len(SANDPOOL)

    await until(only_kinds)


async def test_namespace_with_foreign_objects_is_kept(client: Client) -> None:
    labels = {"app": "theirs"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    theirs = new(DEPLOYMENT, "theirs", spec={"selector": {"matchLabels": labels}, "template": template})
    await client.create(DEPLOYMENT, theirs, SPACE)
    assert (await remove(client))[-1] == f"namespace/{SPACE} kept: it also contains theirs"
    assert (await client.get(NAMESPACE, SPACE))["status"]["phase"] == "Active"


async def test_a_dry_run_removes_nothing(client: Client) -> None:
    assert f"deployment.apps/{CONTROLLER} deleted (dry run)" in await remove(client, dry_run=True)
    assert len(await left(client)) == len(OBJECTS)
