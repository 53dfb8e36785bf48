"""metadata.generation counts changes of what was asked for, and of nothing else."""

from __future__ import annotations

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, POD
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, MergePatch, StrategicPatch
from sandpool.testing.objects import new, pod


async def test_generation_starts_at_one(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"mode": "Running"}), namespace)
    assert created["metadata"]["generation"] == 1


async def test_spec_change_increments_the_generation(client: Client, namespace: str, gadgets: ResourceType) -> None:
    await client.create(gadgets, new(gadgets, "a", spec={"mode": "Running"}), namespace)
    suspend = MergePatch({"spec": {"mode": "Suspended"}})
    assert (await client.patch(gadgets, "a", suspend, namespace))["metadata"]["generation"] == 2
    resume = MergePatch({"spec": {"mode": "Running"}})
    assert (await client.patch(gadgets, "a", resume, namespace))["metadata"]["generation"] == 3


async def test_metadata_change_keeps_the_generation(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"mode": "Running"}), namespace)
    patch = MergePatch({"metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}}})
    patched = await client.patch(gadgets, "a", patch, namespace)
    assert patched["metadata"]["generation"] == 1
    assert patched["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


async def test_status_change_keeps_the_generation(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"mode": "Running"}), namespace)
    patch = MergePatch({"status": {"nodeName": "n"}})
    patched = await client.patch(gadgets, "a", patch, namespace, subresource="status")
    assert patched["metadata"]["generation"] == 1
    assert patched["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


async def test_write_without_changes_keeps_generation_and_version(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"mode": "Running"}), namespace)
    for patch in ({}, {"spec": {"mode": "Running"}}, {"metadata": {"labels": None}}):
        patched = await client.patch(gadgets, "a", MergePatch(patch), namespace)
        assert patched == created


async def test_generation_cannot_be_written(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"mode": "Running"}), namespace)
    patched = await client.patch(gadgets, "a", MergePatch({"metadata": {"generation": 5}}), namespace)
    assert patched == created


async def test_change_outside_metadata_increments_the_generation_without_status_subresource(
    client: Client, namespace: str, widgets: ResourceType
) -> None:
    await client.create(widgets, new(widgets, "a", spec={"n": 1}), namespace)
    patched = await client.patch(widgets, "a", MergePatch({"status": {"n": 1}}), namespace)
    assert (patched["metadata"]["generation"], patched["status"]) == (2, {"n": 1})
    patched = await client.patch(widgets, "a", MergePatch({"metadata": {"labels": {"l": "1"}}}), namespace)
    assert patched["metadata"]["generation"] == 2


async def test_kinds_without_spec_have_no_generation(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    assert "generation" not in created["metadata"]
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "v"}}), namespace)
    assert "generation" not in patched["metadata"]


async def test_deletion_increments_the_generation(client: Client, namespace: str, gadgets: ResourceType) -> None:
    held = new(gadgets, "a", metadata={"finalizers": ["example.com/hold"]}, spec={"mode": "Running"})
    await client.create(gadgets, held, namespace)
    await client.delete(gadgets, "a", namespace)
    deleting = await client.get(gadgets, "a", namespace)
    assert deleting["metadata"]["generation"] == 2
    await client.patch(gadgets, "a", MergePatch({"metadata": {"finalizers": None}}), namespace)


async def test_pod_has_a_generation(client: Client, namespace: str) -> None:
    created = await client.create(POD, pod("a"), namespace)
    assert created["metadata"]["generation"] == 1
    image = {"spec": {"containers": [{"name": "main", "image": "example.com/image:2"}]}}
    patched = await client.patch(POD, "a", StrategicPatch(image), namespace)
    assert patched["metadata"]["generation"] == 2


async def test_deployment_has_a_generation(client: Client, namespace: str) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    created = await client.create(DEPLOYMENT, new(DEPLOYMENT, "a", spec=spec), namespace)
    assert created["metadata"]["generation"] == 1
    patched = await client.patch(DEPLOYMENT, "a", MergePatch({"spec": {"replicas": 3}}), namespace)
    assert patched["metadata"]["generation"] == 2
    status = MergePatch({"status": {"observedGeneration": 2}})
    patched = await client.patch(DEPLOYMENT, "a", status, namespace, subresource="status")
    assert patched["metadata"]["generation"] == 2
