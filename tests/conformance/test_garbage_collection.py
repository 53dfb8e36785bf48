"""Garbage collection of dependents: background, foreground and orphan deletion."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, POD, REPLICA_SET, SECRET
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Invalid, NotFound
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import until
from tests.support.api_objects import owner_reference

# A real garbage collector that has just started needs time to hear of everything.
WITHIN = 60.0
# The UID of no object.
NONEXISTENT = "00000000-0000-0000-0000-000000000001"


async def found(client: Client, type: ResourceType, name: str, namespace: str) -> SharedObject | None:
    try:
        return await client.get(type, name, namespace)
    except NotFound:
        return None


async def gone(client: Client, type: ResourceType, name: str, namespace: str) -> None:
    async def probe() -> bool:
        return await found(client, type, name, namespace) is None

    await until(probe, within=WITHIN)


async def family(
    client: Client, namespace: str, *, block: bool = False
) -> tuple[SharedObject, SharedObject, SharedObject]:
    """An owner, its child in another kind, and the child's child."""
    owner = await client.create(CONFIG_MAP, new(CONFIG_MAP, "owner"), namespace)
    reference = owner_reference(owner, controller=True, block=block)
    child = await client.create(SECRET, new(SECRET, "child", metadata={"ownerReferences": [reference]}), namespace)
    reference = owner_reference(child, block=block)
    grandchild = await client.create(
        CONFIG_MAP, new(CONFIG_MAP, "grandchild", metadata={"ownerReferences": [reference]}), namespace
    )
    await observed(client, namespace)
    return owner, child, grandchild


async def observed(client: Client, namespace: str) -> None:
    """Wait until the garbage collector knows all objects created so far.

    kube-controller-manager learns of them by watches. It orphans or blocks on those dependents only that it knows at
    the time, and collects the others when it learns of them. It learns of a later object of a kind after the earlier
    ones, and collects one whose owner does not exist as soon as it knows it.
    """
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": NONEXISTENT}
    for type in (SECRET, CONFIG_MAP):
        await client.create(type, new(type, "later", metadata={"ownerReferences": [reference]}), namespace)
    for type in (SECRET, CONFIG_MAP):
        await gone(client, type, "later", namespace)


@pytest.mark.parametrize("policy", ["Background", None])
async def test_background_deletion_deletes_dependents_after_the_owner(
    client: Client, namespace: str, policy: str | None
) -> None:
    await family(client, namespace)
    await client.delete(CONFIG_MAP, "owner", namespace, propagation_policy=policy)
    assert await found(client, CONFIG_MAP, "owner", namespace) is None
    await gone(client, SECRET, "child", namespace)
    await gone(client, CONFIG_MAP, "grandchild", namespace)


async def test_foreground_deletion_keeps_the_owner_until_its_dependents_are_gone(
    client: Client, namespace: str
) -> None:
    """The owner stays until its dependants are gone."""
    await family(client, namespace, block=True)
    hold = MergePatch({"metadata": {"finalizers": ["example.com/hold"]}})
    await client.patch(SECRET, "child", hold, namespace)
    deleting = await client.delete(CONFIG_MAP, "owner", namespace, propagation_policy="Foreground")
    assert deleting["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert deleting["metadata"]["deletionTimestamp"]

    async def child_is_deleting() -> bool:
        child = await found(client, SECRET, "child", namespace)
        return child is not None and "deletionTimestamp" in child["metadata"]

    await until(child_is_deleting, within=WITHIN)
    assert await found(client, CONFIG_MAP, "owner", namespace) is not None
    await gone(client, CONFIG_MAP, "grandchild", namespace)

    async def only_we_hold_it() -> bool:
        child = await client.get(SECRET, "child", namespace)
        return bool(child["metadata"]["finalizers"] == ["example.com/hold"])

    await until(only_we_hold_it, within=WITHIN)
    assert await found(client, CONFIG_MAP, "owner", namespace) is not None
    await client.patch(SECRET, "child", MergePatch({"metadata": {"finalizers": []}}), namespace)
    await gone(client, SECRET, "child", namespace)
    await gone(client, CONFIG_MAP, "owner", namespace)


async def test_foreground_deletion_without_dependents_completes(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "owner"), namespace)
    await client.delete(CONFIG_MAP, "owner", namespace, propagation_policy="Foreground")
    await gone(client, CONFIG_MAP, "owner", namespace)


async def test_orphan_deletion_keeps_dependents_without_the_owner(client: Client, namespace: str) -> None:
    await family(client, namespace)
    deleting = await client.delete(CONFIG_MAP, "owner", namespace, propagation_policy="Orphan")
    assert deleting["metadata"]["finalizers"] == ["orphan"]
    await gone(client, CONFIG_MAP, "owner", namespace)
    child = await client.get(SECRET, "child", namespace)
    assert "ownerReferences" not in child["metadata"]
    assert await found(client, CONFIG_MAP, "grandchild", namespace) is not None


async def test_dependent_with_one_remaining_owner_is_kept(client: Client, namespace: str) -> None:
    owners = [await client.create(CONFIG_MAP, new(CONFIG_MAP, name), namespace) for name in ("one", "two")]
    references = [owner_reference(owner) for owner in owners]
    await client.create(SECRET, new(SECRET, "child", metadata={"ownerReferences": references}), namespace)
    await client.delete(CONFIG_MAP, "one", namespace, propagation_policy="Background")

    async def let_go() -> bool:
        child = await client.get(SECRET, "child", namespace)
        return bool(child["metadata"]["ownerReferences"] == references[1:])

    await until(let_go, within=WITHIN)
    await client.delete(CONFIG_MAP, "two", namespace, propagation_policy="Background")
    await gone(client, SECRET, "child", namespace)


async def test_dependent_of_a_nonexistent_owner_is_deleted(client: Client, namespace: str) -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": NONEXISTENT}
    await client.create(SECRET, new(SECRET, "child", metadata={"ownerReferences": [reference]}), namespace)
    await gone(client, SECRET, "child", namespace)


async def test_dependent_of_an_owner_with_another_uid_is_deleted(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIG_MAP, new(CONFIG_MAP, "owner"), namespace)
    reference = {**owner_reference(owner), "uid": NONEXISTENT}
    await client.create(SECRET, new(SECRET, "child", metadata={"ownerReferences": [reference]}), namespace)
    await gone(client, SECRET, "child", namespace)
    assert await found(client, CONFIG_MAP, "owner", namespace) is not None


async def test_owner_references_added_later_count(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIG_MAP, new(CONFIG_MAP, "owner"), namespace)
    await client.create(SECRET, new(SECRET, "child"), namespace)
    patch = MergePatch({"metadata": {"ownerReferences": [owner_reference(owner)]}})
    await client.patch(SECRET, "child", patch, namespace)
    await client.delete(CONFIG_MAP, "owner", namespace, propagation_policy="Background")
    await gone(client, SECRET, "child", namespace)


async def test_deleting_a_deployment_deletes_replica_sets_and_pods(client: Client, namespace: str) -> None:
    """A scheduled pod is deleted with its grace period, so it stays for a while; the others are deleted at once."""
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    deployment = await client.create(DEPLOYMENT, new(DEPLOYMENT, "d", spec=spec), namespace)
    metadata = {"ownerReferences": [owner_reference(deployment, controller=True, block=True)]}
    replica_set = await client.create(REPLICA_SET, new(REPLICA_SET, "r", metadata=metadata, spec=spec), namespace)
    metadata = {"ownerReferences": [owner_reference(replica_set, controller=True, block=True)]}
    await client.create(POD, pod("p", metadata=metadata), namespace)
    await client.delete(DEPLOYMENT, "d", namespace, propagation_policy="Background")
    await gone(client, REPLICA_SET, "r", namespace)
    await gone(client, POD, "p", namespace)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"uid": ""}, "metadata.ownerReferences.uid: Invalid value"),
        ({"name": ""}, "metadata.ownerReferences.name: Invalid value"),
        ({"kind": ""}, "metadata.ownerReferences.kind: Invalid value"),
        ({"apiVersion": ""}, "metadata.ownerReferences.apiVersion: Invalid value"),
    ],
)
async def test_incomplete_owner_references_are_rejected(
    client: Client, namespace: str, change: Object, message: str
) -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", **change}
    with pytest.raises(Invalid, match=message):
        await client.create(SECRET, new(SECRET, "a", metadata={"ownerReferences": [reference]}), namespace)


async def test_second_controller_reference_is_rejected(client: Client, namespace: str) -> None:
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": name, "controller": True} for name in "ab"
    ]
    with pytest.raises(Invalid) as refused:
        await client.create(SECRET, new(SECRET, "a", metadata={"ownerReferences": references}), namespace)
    assert "Only one reference can have Controller set to true." in refused.value.message
