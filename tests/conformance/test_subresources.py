"""The status and scale subresources: two views of one object, each of which writes only its part."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import DEPLOYMENT, NAMESPACE, POD
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, JsonPatch, MergePatch, StrategicPatch
from sandpool.kube.errors import BadRequest, Conflict, Invalid, NotFound
from sandpool.testing.objects import new, pod
from tests.support.extra_verbs import replace


def deployment(name: str, replicas: int = 1) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return new(DEPLOYMENT, name, spec=spec)


# Status


async def test_status_given_at_creation_is_dropped(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"n": 1}, status={"n": 1}), namespace)
    assert "status" not in created


async def test_main_resource_does_not_write_status(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace)
    updated = await replace(client, gadgets, {**created, "spec": {"n": 2}, "status": {"n": 2}}, namespace)
    assert updated["spec"] == {"n": 2}
    assert "status" not in updated
    patched = await client.patch(gadgets, "a", MergePatch({"status": {"n": 3}}), namespace)
    assert patched == updated


async def test_status_does_not_write_the_spec(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace)
    changed = {**created, "spec": {"n": 2}, "status": {"n": 2}}
    updated = await replace(client, gadgets, changed, namespace, subresource="status")
    assert (updated["spec"], updated["status"]) == ({"n": 1}, {"n": 2})


async def test_status_of_a_custom_kind_does_not_write_metadata(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    await client.create(gadgets, new(gadgets, "a", metadata={"labels": {"l": "1"}}), namespace)
    both = MergePatch({"metadata": {"labels": {"l": "2"}, "annotations": {"a": "1"}}, "status": {"n": 1}})
    patched = await client.patch(gadgets, "a", both, namespace, subresource="status")
    assert patched["status"] == {"n": 1}
    assert patched["metadata"]["labels"] == {"l": "1"}
    assert "annotations" not in patched["metadata"]


async def test_update_of_the_main_resource_keeps_the_status(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace)
    reported = await client.patch(gadgets, "a", MergePatch({"status": {"n": 1}}), namespace, subresource="status")
    without = {key: value for key, value in reported.items() if key != "status"}
    updated = await replace(client, gadgets, {**without, "spec": {"n": 2}}, namespace)
    assert (updated["spec"], updated["status"]) == ({"n": 2}, {"n": 1})


async def test_get_of_status_returns_the_whole_object(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace)
    assert await client.get(gadgets, "a", namespace, subresource="status") == created


async def test_status_update_with_a_stale_version_conflicts(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    created = await client.create(gadgets, new(gadgets, "a"), namespace)
    await client.patch(gadgets, "a", MergePatch({"spec": {"n": 1}}), namespace)
    with pytest.raises(Conflict, match=r"the object has been modified"):
        await replace(client, gadgets, {**created, "status": {"n": 1}}, namespace, subresource="status")


async def test_status_patch_of_a_missing_object_is_not_found(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    with pytest.raises(NotFound, match=r'gadgets.conformance.example.com "missing" not found'):
        await client.patch(gadgets, "missing", MergePatch({"status": {}}), namespace, subresource="status")


async def test_status_patch_without_changes_keeps_the_version(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    await client.create(gadgets, new(gadgets, "a"), namespace)
    status = MergePatch({"status": {"n": 1}})
    first = await client.patch(gadgets, "a", status, namespace, subresource="status")
    assert await client.patch(gadgets, "a", status, namespace, subresource="status") == first


async def test_strategic_patch_of_the_pod_status_merges_conditions(client: Client, namespace: str) -> None:
    """A kubelet sends this patch: conditions merge by type."""
    await client.create(POD, pod("a"), namespace)
    for name, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        patch = StrategicPatch({"status": {"phase": "Running", "conditions": [{"type": name, "status": status}]}})
        patched = await client.patch(POD, "a", patch, namespace, subresource="status")
    assert patched["status"]["phase"] == "Running"
    assert {each["type"]: each["status"] for each in patched["status"]["conditions"]} == {
        "Ready": "True",
        "Initialized": "True",
    }


async def test_pod_status_does_not_write_the_spec(client: Client, namespace: str) -> None:
    created = await client.create(POD, pod("a"), namespace)
    patch = MergePatch({"spec": {"containers": [{"name": "other", "image": "other"}]}, "status": {"podIP": "10.0.0.1"}})
    patched = await client.patch(POD, "a", patch, namespace, subresource="status")
    assert patched["spec"] == created["spec"]
    assert patched["status"]["podIP"] == "10.0.0.1"
    assert patched["status"]["podIPs"] == [{"ip": "10.0.0.1"}]


async def test_phase_of_a_namespace_cannot_be_invented(client: Client, namespace: str) -> None:
    patched = await client.patch(NAMESPACE, namespace, MergePatch({"status": {"phase": "Terminating"}}))
    assert patched["status"] == {"phase": "Active"}


# Scale


async def test_scale_of_a_deployment_has_replicas_and_selector(client: Client, namespace: str) -> None:
    created = await client.create(DEPLOYMENT, deployment("a", 2), namespace)
    scale = await client.get(DEPLOYMENT, "a", namespace, subresource="scale")
    metadata = created["metadata"]
    assert scale == {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            field: metadata[field] for field in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        },
        "spec": {"replicas": 2},
        "status": {"replicas": 0, "selector": "app=a"},
    }


async def test_scale_is_changed_by_a_merge_patch(client: Client, namespace: str) -> None:
    await client.create(DEPLOYMENT, deployment("a", 2), namespace)
    scale = await client.patch(DEPLOYMENT, "a", MergePatch({"spec": {"replicas": 5}}), namespace, subresource="scale")
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 5})
    scaled = await client.get(DEPLOYMENT, "a", namespace)
    assert scaled["spec"]["replicas"] == 5
    assert scaled["metadata"]["generation"] == 2
    assert scaled["metadata"]["resourceVersion"] == scale["metadata"]["resourceVersion"]


async def test_scale_is_changed_by_an_update(client: Client, namespace: str) -> None:
    await client.create(DEPLOYMENT, deployment("a", 2), namespace)
    scale = await client.get(DEPLOYMENT, "a", namespace, subresource="scale")
    scaled = await replace(client, DEPLOYMENT, {**scale, "spec": {"replicas": 3}}, namespace, subresource="scale")
    assert scaled["spec"] == {"replicas": 3}
    with pytest.raises(Conflict, match=r"the object has been modified"):
        await replace(client, DEPLOYMENT, {**scale, "spec": {"replicas": 4}}, namespace, subresource="scale")


async def test_negative_scale_is_rejected(client: Client, namespace: str) -> None:
    await client.create(DEPLOYMENT, deployment("a"), namespace)
    with pytest.raises(Invalid, match=r"spec.replicas: Invalid value: -1: must be greater than or equal to 0"):
        await client.patch(DEPLOYMENT, "a", MergePatch({"spec": {"replicas": -1}}), namespace, subresource="scale")


async def test_scale_of_a_custom_kind_follows_its_paths(client: Client, namespace: str, gadgets: ResourceType) -> None:
    await client.create(gadgets, new(gadgets, "a", spec={"replicas": 2, "n": 1}), namespace)
    reported = await client.patch(
        gadgets, "a", MergePatch({"status": {"replicas": 1, "selector": "x=y"}}), namespace, subresource="status"
    )
    scale = await client.get(gadgets, "a", namespace, subresource="scale")
    metadata = reported["metadata"]
    assert scale == {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            field: metadata[field] for field in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        },
        "spec": {"replicas": 2},
        "status": {"replicas": 1, "selector": "x=y"},
    }
    patch = JsonPatch([{"op": "replace", "path": "/spec/replicas", "value": 7}])
    scale = await client.patch(gadgets, "a", patch, namespace, subresource="scale")
    assert scale["spec"] == {"replicas": 7}
    assert (await client.get(gadgets, "a", namespace))["spec"] == {"replicas": 7, "n": 1}


async def test_scale_without_status_has_zero_replicas(client: Client, namespace: str, gadgets: ResourceType) -> None:
    await client.create(gadgets, new(gadgets, "a", spec={"replicas": 2}), namespace)
    scale = await client.get(gadgets, "a", namespace, subresource="scale")
    assert scale["status"] == {"replicas": 0}


async def test_scale_of_a_missing_object_is_not_found(client: Client, namespace: str, gadgets: ResourceType) -> None:
    with pytest.raises(NotFound, match=r'gadgets.conformance.example.com "missing" not found'):
        await client.get(gadgets, "missing", namespace, subresource="scale")


async def test_scale_rejects_another_kind(client: Client, namespace: str) -> None:
    created = await client.create(DEPLOYMENT, deployment("a"), namespace)
    with pytest.raises(BadRequest, match=r"Deployment"):
        await replace(client, DEPLOYMENT, created, namespace, subresource="scale")
