"""dryRun=All: everything is checked and computed, nothing is kept."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE, POD
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import take
from tests.support.extra_verbs import delete_collection, replace


async def test_dry_run_of_create_returns_defaults_and_persists_nothing(client: Client, namespace: str) -> None:
    created = await client.create(POD, pod("a"), namespace, dry_run=True)
    assert created["spec"]["restartPolicy"] == "Always"
    assert created["metadata"]["uid"]
    assert "resourceVersion" not in created["metadata"]
    with pytest.raises(NotFound):
        await client.get(POD, "a", namespace)


async def test_dry_run_of_create_reports_an_existing_name(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(AlreadyExists, match=r'configmaps "a" already exists'):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace, dry_run=True)


async def test_dry_run_of_create_reports_an_invalid_object(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "A"), namespace, dry_run=True)


async def test_dry_run_of_create_reports_a_missing_namespace(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace + "-missing", dry_run=True)


async def test_dry_run_of_update_persists_nothing(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), namespace)
    updated = await replace(client, CONFIG_MAP, {**created, "data": {"k": "2"}}, namespace, dryRun="All")
    assert updated["data"] == {"k": "2"}
    assert updated["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert await client.get(CONFIG_MAP, "a", namespace) == created


async def test_dry_run_of_update_reports_a_stale_version(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), namespace)
    await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "2"}}), namespace)
    with pytest.raises(Conflict):
        await replace(client, CONFIG_MAP, {**created, "data": {"k": "3"}}, namespace, dryRun="All")


async def test_dry_run_of_patch_persists_nothing(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace)
    patched = await client.patch(gadgets, "a", MergePatch({"spec": {"n": 2}}), namespace, dry_run=True)
    assert patched["spec"] == {"n": 2}
    assert patched["metadata"]["generation"] == 2
    status = MergePatch({"status": {"n": 2}})
    patched = await client.patch(gadgets, "a", status, namespace, subresource="status", dry_run=True)
    assert patched["status"] == {"n": 2}
    scale = MergePatch({"spec": {"replicas": 2}})
    patched = await client.patch(gadgets, "a", scale, namespace, subresource="scale", dry_run=True)
    assert patched["spec"] == {"replicas": 2}
    assert await client.get(gadgets, "a", namespace) == created


async def test_dry_run_of_delete_persists_nothing(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await client.delete(CONFIG_MAP, "a", namespace, dry_run=True)
    assert await client.get(CONFIG_MAP, "a", namespace) == created


async def test_dry_run_of_delete_keeps_an_object_with_finalizers(client: Client, namespace: str) -> None:
    held = new(CONFIG_MAP, "a", metadata={"finalizers": ["example.com/hold"]})
    created = await client.create(CONFIG_MAP, held, namespace)
    await client.delete(CONFIG_MAP, "a", namespace, dry_run=True)
    assert await client.get(CONFIG_MAP, "a", namespace) == created
    await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"finalizers": None}}), namespace)


async def test_dry_run_of_delete_keeps_a_namespace_active(client: Client, namespace: str) -> None:
    await client.delete(NAMESPACE, namespace, dry_run=True)
    assert (await client.get(NAMESPACE, namespace))["status"] == {"phase": "Active"}


async def test_dry_run_of_delete_collection_persists_nothing(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await delete_collection(client, CONFIG_MAP, namespace, dryRun="All")
    assert await client.get(CONFIG_MAP, "a", namespace) == created


async def test_dry_run_sends_no_watch_event(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "b"), namespace, dry_run=True)
    await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "v"}}), namespace, dry_run=True)
    await client.delete(CONFIG_MAP, "a", namespace, dry_run=True)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "end"), namespace)
    [event] = await take(
        client.watch(CONFIG_MAP, namespace, resource_version=created["metadata"]["resourceVersion"]), 1
    )
    assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "end")


async def test_dry_run_accepts_only_all(client: Client, namespace: str) -> None:
    from sandpool.kube.transport import Request

    with pytest.raises(Invalid) as refused:
        await client.transport.request(
            Request("POST", CONFIG_MAP.path(namespace), {"dryRun": "Some"}, new(CONFIG_MAP, "a"))
        )
    assert refused.value.message == (
        'CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"'
    )
