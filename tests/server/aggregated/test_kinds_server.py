"""The four kinds over a store of their own: which verbs, which namespaces, and what is collected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from sandpool.api.kinds import NAMESPACE, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL, SANDPOOL
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import ApplyPatch, Client, MergePatch
from sandpool.kube.errors import Forbidden, NotFound
from sandpool.kube.transport import Request
from sandpool.server.aggregated.kinds_server import GROUPS, KindsServer
from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import take, until
from tests.support.api_objects import owner_reference

ACTIVE: Object = {"status": {"phase": "Active"}}
NAMESPACES = {"ns": ACTIVE, "ending": {"status": {"phase": "Terminating"}}}


async def opened(directory: Path) -> KindsServer:
    server = KindsServer(Store(Journal(directory)), NAMESPACES.get, SystemClock(), Random(1))
    await server.start()
    return server


async def closed(server: KindsServer) -> None:
    await server.stop()
    await server.store.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KindsServer]:
    server = await opened(tmp_path)
    yield server
    await closed(server)


@pytest.fixture
def client(server: KindsServer) -> Client:
    return Client(server.transport("test"))


def sandbox(name: str, *owners: Object, **metadata: object) -> Object:
    metadata = {"ownerReferences": list(owners), **metadata} if owners else metadata
    body = new(SANDBOX, name, spec={"podTemplate": pod_template()})
    return {**body, "metadata": {**body["metadata"], **metadata}}


def claim(name: str) -> Object:
    return new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "python"}})


async def missing(client: Client, name: str) -> bool:
    try:
        await client.get(SANDBOX, name, "ns")
    except NotFound:
        return True
    return False


async def collected(server: KindsServer) -> None:
    await server.collector.controller.queue.settled()


async def test_exactly_our_groups_are_served(client: Client) -> None:
    groups = await client.transport.request(Request("GET", "/apis"))
    assert {each["name"] for each in groups["groups"]} == set(GROUPS)
    listed = [await client.transport.request(Request("GET", f"/apis/{group}/v1beta1")) for group in GROUPS]
    names = {each["name"] for listing in listed for each in listing["resources"]}
    assert {each for each in names if "/" not in each} == {type.plural for type in SANDPOOL}
    for type in (POD, NAMESPACE):
        with pytest.raises(NotFound):
            await client.list(type)


async def test_create_needs_an_active_namespace_of_the_other_api(client: Client) -> None:
    created = await client.create(SANDBOX, sandbox("a"), "ns")
    assert created["metadata"]["namespace"] == "ns"
    with pytest.raises(NotFound, match='namespaces "other" not found'):
        await client.create(SANDBOX, sandbox("a"), "other")
    with pytest.raises(Forbidden, match="is being terminated"):
        await client.create(SANDBOX, sandbox("a"), "ending")
    with pytest.raises(NotFound, match='namespaces "other" not found'):
        await client.patch(SANDBOX, "a", ApplyPatch(sandbox("a")), "other")


async def test_watch_from_the_list_of_an_empty_store_misses_nothing(tmp_path: Path) -> None:
    """Its version is not "0", which means any version: the watch would begin with the objects of that moment."""
    await closed(await opened(tmp_path))
    server = await opened(tmp_path)
    client = Client(server.transport("test"))
    version = (await client.list(SANDBOX, "ns"))["metadata"]["resourceVersion"]
    assert version == "1"
    await client.create(SANDBOX, sandbox("a"), "ns")
    await client.delete(SANDBOX, "a", "ns")
    events = await take(client.watch(SANDBOX, "ns", resource_version=version), 2)
    assert [event.type for event in events] == ["ADDED", "DELETED"]
    assert int(events[0].object["metadata"]["resourceVersion"]) > 1
    await closed(server)


async def test_dependents_of_our_own_kinds_are_collected(server: KindsServer, client: Client) -> None:
    owner = await client.create(SANDBOX_CLAIM, claim("a"), "ns")
    await client.create(SANDBOX, sandbox("owned", owner_reference(owner, controller=True)), "ns")
    await client.create(SANDBOX, sandbox("free"), "ns")
    await client.delete(SANDBOX_CLAIM, "a", "ns")
    await until(lambda: missing(client, "owned"))
    await collected(server)
    assert not await missing(client, "free")


async def test_owner_in_the_other_api_is_not_judged(server: KindsServer, client: Client) -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "unknown"}
    await client.create(SANDBOX, sandbox("owned", reference), "ns")
    await collected(server)
    assert not await missing(client, "owned")


async def test_dependents_whose_owner_was_deleted_before_a_stop_are_collected_after_it(tmp_path: Path) -> None:
    server = await opened(tmp_path)
    client = Client(server.transport("test"))
    owner = await client.create(SANDBOX_CLAIM, claim("a"), "ns")
    await client.create(SANDBOX, sandbox("owned", owner_reference(owner)), "ns")
    assert server._collecting is not None
    server._collecting.cancel()
    await client.delete(SANDBOX_CLAIM, "a", "ns")
    await closed(server)
    server = await opened(tmp_path)
    client = Client(server.transport("test"))
    await until(lambda: missing(client, "owned"))
    await closed(server)


@pytest.mark.parametrize("policy", ["Foreground", "Orphan"])
async def test_deletions_with_a_finalizer_are_left_to_the_collector_that_sees_both_apis(
    server: KindsServer, client: Client, policy: str
) -> None:
    """A pod in the other API may depend on the claim or on its sandbox."""
    owner = await client.create(SANDBOX_CLAIM, claim("a"), "ns")
    await client.create(SANDBOX, sandbox("owned", owner_reference(owner, block=True)), "ns")
    await client.delete(SANDBOX_CLAIM, "a", "ns", propagation_policy=policy)
    await collected(server)
    left = await client.get(SANDBOX_CLAIM, "a", "ns")
    assert left["metadata"]["finalizers"] == [{"Foreground": "foregroundDeletion", "Orphan": "orphan"}[policy]]
    assert not await missing(client, "owned")
    # That collector removes the finalizer when it has done its part. What is left is ordinary.
    await client.patch(SANDBOX_CLAIM, "a", MergePatch({"metadata": {"finalizers": None}}), "ns")
    await until(lambda: missing(client, "owned"))


async def test_status_and_metadata_are_written_together(client: Client) -> None:
    assert client.stores_metadata_with_status
    await client.create(SANDBOX_CLAIM, claim("a"), "ns")
    change = {"metadata": {"annotations": {"a": "b"}}, "status": {"conditions": []}}
    written = await client.patch(SANDBOX_CLAIM, "a", MergePatch(change), "ns", subresource="status", with_metadata=True)
    assert written["metadata"]["annotations"] == {"a": "b"}


async def test_scale_is_served(client: Client) -> None:
    pool = new(SANDBOX_WARM_POOL, "python", spec={"replicas": 1, "sandboxTemplateRef": {"name": "python"}})
    await client.create(SANDBOX_WARM_POOL, pool, "ns")
    await client.patch(SANDBOX_WARM_POOL, "python", MergePatch({"spec": {"replicas": 3}}), "ns", subresource="scale")
    scale = await client.get(SANDBOX_WARM_POOL, "python", "ns", subresource="scale")
    assert scale["spec"]["replicas"] == 3
