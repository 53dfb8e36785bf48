"""Namespaces: what they come with, what may happen in them, and how they go."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE, POD, SECRET, SERVICE_ACCOUNT
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, Forbidden, NotFound
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import until
from tests.support.extra_verbs import replace

# A real namespace controller works in rounds of several seconds.
WITHIN = 60.0


async def found(client: Client, type: ResourceType, name: str, namespace: str | None = None) -> SharedObject | None:
    try:
        return await client.get(type, name, namespace)
    except NotFound:
        return None


async def gone(client: Client, type: ResourceType, name: str, namespace: str | None = None) -> None:
    async def probe() -> bool:
        return await found(client, type, name, namespace) is None

    await until(probe, within=WITHIN)


async def test_new_namespace_is_active_and_labelled(client: Client, namespace: str) -> None:
    created = await client.get(NAMESPACE, namespace)
    assert created["metadata"]["labels"] == {"kubernetes.io/metadata.name": namespace}
    assert created["spec"] == {"finalizers": ["kubernetes"]}
    assert created["status"] == {"phase": "Active"}


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public", "kube-node-lease"])
async def test_initial_namespaces_exist(client: Client, name: str) -> None:
    assert (await client.get(NAMESPACE, name))["status"] == {"phase": "Active"}


async def test_name_label_of_a_namespace_is_restored(client: Client, namespace: str) -> None:
    patch = MergePatch({"metadata": {"labels": {"kubernetes.io/metadata.name": None, "l": "1"}}})
    patched = await client.patch(NAMESPACE, namespace, patch)
    assert patched["metadata"]["labels"] == {"kubernetes.io/metadata.name": namespace, "l": "1"}


async def test_namespace_gets_a_default_service_account(client: Client, namespace: str) -> None:
    async def account() -> SharedObject | None:
        return await found(client, SERVICE_ACCOUNT, "default", namespace)

    assert await until(account)


async def test_spec_of_a_namespace_is_read_only(client: Client, namespace: str) -> None:
    patched = await client.patch(NAMESPACE, namespace, MergePatch({"spec": {"finalizers": []}}))
    assert patched["spec"] == {"finalizers": ["kubernetes"]}


async def test_deleting_a_namespace_deletes_its_objects(client: Client, namespace: str, widgets: ResourceType) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await client.create(SECRET, new(SECRET, "a"), namespace)
    await client.create(widgets, new(widgets, "a", spec={}), namespace)
    deleting = await client.delete(NAMESPACE, namespace)
    assert deleting["kind"] == "Namespace"
    assert deleting["metadata"]["deletionTimestamp"]
    assert deleting["status"]["phase"] == "Terminating"
    await gone(client, NAMESPACE, namespace)
    for type in (CONFIG_MAP, SECRET, widgets):
        assert (await client.list(type, namespace))["items"] == []


async def test_objects_with_finalizers_delay_the_deletion_of_the_namespace(client: Client, namespace: str) -> None:
    held = new(CONFIG_MAP, "held", metadata={"finalizers": ["example.com/hold"]})
    await client.create(CONFIG_MAP, held, namespace)
    await client.delete(NAMESPACE, namespace)

    async def content_is_deleting() -> bool:
        return "deletionTimestamp" in (await client.get(CONFIG_MAP, "held", namespace))["metadata"]

    await until(content_is_deleting, within=WITHIN)
    assert (await client.get(NAMESPACE, namespace))["status"]["phase"] == "Terminating"

    # Nothing new comes in,
    with pytest.raises(Forbidden) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "new"), namespace)
    assert refused.value.message == (
        f'configmaps "new" is forbidden: unable to create new content in namespace {namespace} because it is being '
        "terminated"
    )
    assert refused.value.details["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
    ]
    # the name is taken,
    with pytest.raises(AlreadyExists) as taken:
        await client.create(NAMESPACE, new(NAMESPACE, namespace))
    assert taken.value.message == f'object is being deleted: namespaces "{namespace}" already exists'
    # and what is there can still be changed, and must be for it to go.
    await client.patch(CONFIG_MAP, "held", MergePatch({"metadata": {"finalizers": None}}), namespace)
    await gone(client, NAMESPACE, namespace)


async def test_pods_of_a_terminating_namespace_are_deleted_first(client: Client, namespace: str) -> None:
    """Objects that pods may use stay until the pods are gone."""
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "needed"), namespace)
    running = pod("running", spec={"nodeName": "n", "terminationGracePeriodSeconds": 1})
    await client.create(POD, running, namespace)
    await client.delete(NAMESPACE, namespace)

    async def pod_is_deleting() -> bool:
        return "deletionTimestamp" in (await client.get(POD, "running", namespace))["metadata"]

    await until(pod_is_deleting, within=WITHIN)
    assert await found(client, CONFIG_MAP, "needed", namespace) is not None
    await client.delete(POD, "running", namespace, grace_period_seconds=0)
    await gone(client, NAMESPACE, namespace)


async def test_spec_finalizer_is_removed_through_finalize(client: Client, namespace: str) -> None:
    """A foreign spec finalizer keeps the namespace until it is removed through finalize."""
    name = namespace + "-final"
    await client.create(NAMESPACE, new(NAMESPACE, name, spec={"finalizers": ["example.com/hold"]}))
    created = await client.get(NAMESPACE, name)
    assert sorted(created["spec"]["finalizers"]) == ["example.com/hold", "kubernetes"]
    await client.delete(NAMESPACE, name)

    async def only_ours() -> SharedObject | None:
        current = await client.get(NAMESPACE, name)
        return current if current["spec"]["finalizers"] == ["example.com/hold"] else None

    current = await until(only_ours, within=WITHIN)
    assert current is not None
    await replace(client, NAMESPACE, {**current, "spec": {"finalizers": []}}, subresource="finalize")
    await gone(client, NAMESPACE, name)


async def test_metadata_finalizers_delay_the_deletion_of_a_namespace(client: Client, namespace: str) -> None:
    name = namespace + "-held"
    await client.create(NAMESPACE, new(NAMESPACE, name, metadata={"finalizers": ["example.com/hold"]}))
    await client.delete(NAMESPACE, name)

    async def emptied() -> bool:
        return "finalizers" not in (await client.get(NAMESPACE, name))["spec"]

    await until(emptied, within=WITHIN)
    await client.patch(NAMESPACE, name, MergePatch({"metadata": {"finalizers": None}}))
    await gone(client, NAMESPACE, name)


async def test_deleted_namespace_can_be_created_again(client: Client, namespace: str) -> None:
    before = await client.get(NAMESPACE, namespace)
    await client.create(SECRET, new(SECRET, "a"), namespace)
    await client.delete(NAMESPACE, namespace)
    await gone(client, NAMESPACE, namespace)
    again = await client.create(NAMESPACE, new(NAMESPACE, namespace))
    assert again["metadata"]["uid"] != before["metadata"]["uid"]
    assert (await client.list(SECRET, namespace))["items"] == []


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_system_namespaces_cannot_be_deleted(client: Client, name: str) -> None:
    with pytest.raises(Forbidden) as refused:
        await client.delete(NAMESPACE, name)
    assert refused.value.message == (f'namespaces "{name}" is forbidden: this namespace may not be deleted')


async def test_phase_of_a_created_namespace_is_ignored(client: Client, namespace: str) -> None:
    name = namespace + "-other"
    created = await client.create(NAMESPACE, new(NAMESPACE, name, status={"phase": "Terminating"}))
    assert created["status"] == {"phase": "Active"}
