"""An installation keeps its storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest

from sandpool.api.kinds import API_SERVICE, API_SERVICES, CUSTOM_RESOURCE_DEFINITION, LEASE, NAMESPACE, SANDPOOL
from sandpool.api.labels import VOLUME_RECORD
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.install import apiserver, names
from sandpool.install.errors import InstallError
from sandpool.install.storage import Storage, choose_storage, present_storage
from sandpool.install.storage_move import Direction, StorageMover
from sandpool.kube.client import Client, MergePatch
from sandpool.server.aggregated.volume_record import VolumeRecord
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new
from tests.support.api_objects import definition
from tests.support.custom_kinds import install


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a cluster without our kinds that has an aggregation layer as far as its objects show."""
    server = ApiServer(tmp_path)
    await server.start()
    client = server.client()
    for type in SANDPOOL:
        await client.delete(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
    crd = definition(API_SERVICE)
    crd["spec"]["names"] |= {"singular": "apiservice", "listKind": "APIServiceList"}
    crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
    await install(client, crd)
    yield client
    await server.stop()


async def with_custom_resources(client: Client) -> None:
    """As kube-apiserver has them: each group is registered without a Service."""
    await client.create(CUSTOM_RESOURCE_DEFINITION, definition(SANDPOOL[0]))
    local: Object = new(API_SERVICE, API_SERVICES[0], spec={"group": SANDPOOL[0].group, "version": SANDPOOL[0].version})
    await client.create(API_SERVICE, local)


async def aggregated(client: Client) -> None:
    for each in apiserver.api_services():
        await client.create(API_SERVICE, each)


async def test_custom_resources_are_the_default(client: Client) -> None:
    assert await present_storage(client) is None
    assert await choose_storage(client, None) == "crd"
    assert await choose_storage(client, "aggregated") == "aggregated"


async def test_present_storage_is_kept(client: Client) -> None:
    await aggregated(client)
    assert await present_storage(client) == "aggregated"
    assert await choose_storage(client, None) == "aggregated"
    assert await choose_storage(client, "aggregated") == "aggregated"


async def test_registration_of_custom_resources_is_not_mistaken_for_ours(client: Client) -> None:
    await with_custom_resources(client)
    assert await present_storage(client) == "crd"


@pytest.mark.parametrize(("present", "wanted"), [("crd", "aggregated"), ("aggregated", "crd")])
async def test_other_storage_is_refused(client: Client, present: Storage, wanted: Storage) -> None:
    await (aggregated if present == "aggregated" else with_custom_resources)(client)
    with pytest.raises(InstallError, match=f"--storage {present}\nTo change that: .*storage move --to {wanted}"):
        await choose_storage(client, wanted)


async def test_volume_that_the_cluster_remembers_makes_the_storage_aggregated(client: Client) -> None:
    """The APIServices were deleted: custom resources in their place would be empty."""
    await with_custom_resources(client)
    lease = new(LEASE, names.LEASE, spec={})
    lease["metadata"]["annotations"] = VolumeRecord("volume", 7, 3).annotations()
    await client.create(NAMESPACE, new(NAMESPACE, names.NAMESPACE))
    await client.create(LEASE, lease, names.NAMESPACE)
    assert await present_storage(client) == "aggregated"
    assert await choose_storage(client, None) == "aggregated"
    with pytest.raises(InstallError, match="--storage aggregated"):
        await choose_storage(client, "crd")
    for to in get_args(Direction):
        mover = StorageMover(client, SystemClock(), lambda line: None, [], [])
        with pytest.raises(InstallError, match=r"its APIServices are missing\n.*sandpool install --storage aggregated"):
            await mover.move(to)
    forget = MergePatch({"metadata": {"annotations": {VOLUME_RECORD: ""}}})
    await client.patch(LEASE, names.LEASE, forget, names.NAMESPACE)
    assert await present_storage(client) == "crd"
