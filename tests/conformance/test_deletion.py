"""Deleting one object: answers, preconditions, finalizers and grace."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD, SECRET
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, BadRequest, Conflict, Invalid, NotFound
from sandpool.kube.transport import Request
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import take
from tests.support.api_access import Raw

HOLD = "example.com/hold"


async def gone(client: Client, type: ResourceType, name: str, namespace: str) -> bool:
    try:
        await client.get(type, name, namespace)
    except NotFound:
        return True
    return False


async def release(client: Client, type: ResourceType, name: str, namespace: str) -> SharedObject:
    return await client.patch(type, name, MergePatch({"metadata": {"finalizers": None}}), namespace)


async def test_delete_answers_a_status_with_the_uid(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    assert await client.delete(CONFIG_MAP, "a", namespace) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "a", "kind": "configmaps", "uid": created["metadata"]["uid"]},
    }
    assert await gone(client, CONFIG_MAP, "a", namespace)


async def test_status_of_a_delete_names_the_group(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={}), namespace)
    answer = await client.delete(gadgets, "a", namespace)
    assert answer["details"] == {
        "name": "a",
        "group": "conformance.example.com",
        "kind": "gadgets",
        "uid": created["metadata"]["uid"],
    }


async def test_delete_of_a_missing_object_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=r'configmaps "missing" not found'):
        await client.delete(CONFIG_MAP, "missing", namespace)


async def test_delete_options_without_a_kind_are_accepted(raw: Raw, client: Client, namespace: str) -> None:
    """Some clients send bare options without a content type."""
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    body = b'{"preconditions":{"uid":"%s"}}' % created["metadata"]["uid"].encode()
    answer = await raw("DELETE", CONFIG_MAP.path(namespace, "a"), body=body)
    assert answer.status == 200


async def test_delete_options_in_the_query_are_accepted(raw: Raw, client: Client, namespace: str) -> None:
    await client.create(POD, pod("a", spec={"nodeName": "n"}), namespace)
    answer = await raw("DELETE", POD.path(namespace, "a") + "?gracePeriodSeconds=7")
    assert answer.json()["metadata"]["deletionGracePeriodSeconds"] == 7
    await client.delete(POD, "a", namespace, grace_period_seconds=0)


# Preconditions


async def test_delete_with_matching_preconditions_succeeds(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    metadata = created["metadata"]
    await client.delete(CONFIG_MAP, "a", namespace, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
    assert await gone(client, CONFIG_MAP, "a", namespace)


async def test_delete_with_another_uid_conflicts(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(Conflict) as refused:
        await client.delete(CONFIG_MAP, "a", namespace, uid="other")
    assert refused.value.message == (
        'Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (other) does not match the UID in '
        f"record ({created['metadata']['uid']}). The object might have been deleted and then recreated"
    )
    assert not await gone(client, CONFIG_MAP, "a", namespace)


async def test_delete_with_another_version_conflicts(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(Conflict) as refused:
        await client.delete(CONFIG_MAP, "a", namespace, resource_version="1")
    assert refused.value.message == (
        'Operation cannot be fulfilled on ConfigMap "a": the ResourceVersion in the precondition (1) does not match '
        f"the ResourceVersion in record ({created['metadata']['resourceVersion']}). "
        "The object might have been modified"
    )
    assert not await gone(client, CONFIG_MAP, "a", namespace)


async def test_delete_of_a_custom_object_with_a_stale_version_conflicts(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={}), namespace)
    await client.patch(gadgets, "a", MergePatch({"spec": {"n": 1}}), namespace)
    with pytest.raises(Conflict, match=r"the ResourceVersion in the precondition"):
        await client.delete(gadgets, "a", namespace, resource_version=created["metadata"]["resourceVersion"])


# Finalizers


async def test_finalizers_delay_the_deletion(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": [HOLD]}), namespace)
    deleting = await client.delete(CONFIG_MAP, "a", namespace)
    assert deleting["kind"] == "ConfigMap"
    metadata = deleting["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 0
    assert datetime.fromisoformat(metadata["deletionTimestamp"]).tzinfo is UTC
    assert int(metadata["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
    assert await client.get(CONFIG_MAP, "a", namespace) == deleting
    await release(client, CONFIG_MAP, "a", namespace)
    assert await gone(client, CONFIG_MAP, "a", namespace)


async def test_second_delete_changes_nothing(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": [HOLD]}), namespace)
    first = await client.delete(CONFIG_MAP, "a", namespace)
    assert await client.delete(CONFIG_MAP, "a", namespace) == first
    await release(client, CONFIG_MAP, "a", namespace)


async def test_removing_the_last_finalizer_deletes_the_object(client: Client, namespace: str) -> None:
    finalizers = [HOLD, HOLD + "-too"]
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": finalizers}), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"finalizers": [HOLD]}}), namespace)
    assert not await gone(client, CONFIG_MAP, "a", namespace)
    last = await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"finalizers": []}}), namespace)
    assert last["metadata"]["deletionTimestamp"]
    assert await gone(client, CONFIG_MAP, "a", namespace)


async def test_finalizers_can_change_without_a_deletion(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": [HOLD]}), namespace)
    await release(client, CONFIG_MAP, "a", namespace)
    assert not await gone(client, CONFIG_MAP, "a", namespace)


async def test_finalizers_cannot_be_added_while_deleting(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": [HOLD]}), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    with pytest.raises(Invalid) as refused:
        more = MergePatch({"metadata": {"finalizers": [HOLD, "example.com/more"]}})
        await client.patch(CONFIG_MAP, "a", more, namespace)
    assert refused.value.message == (
        'ConfigMap "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is '
        'being deleted, found new finalizers []string{"example.com/more"}'
    )
    await release(client, CONFIG_MAP, "a", namespace)


async def test_deletion_timestamp_cannot_be_removed(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": [HOLD]}), namespace)
    deleting = await client.delete(CONFIG_MAP, "a", namespace)
    patch = MergePatch({"metadata": {"deletionTimestamp": None, "deletionGracePeriodSeconds": None}})
    assert await client.patch(CONFIG_MAP, "a", patch, namespace) == deleting
    await release(client, CONFIG_MAP, "a", namespace)


async def test_other_fields_can_change_while_deleting(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": [HOLD]}), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "v"}}), namespace)
    assert patched["data"] == {"k": "v"}
    await release(client, CONFIG_MAP, "a", namespace)


async def test_finalizer_names_must_be_qualified(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match=r"metadata.finalizers: Invalid value"):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": ["not qualified"]}), namespace)


async def test_name_of_a_terminating_object_is_taken(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": [HOLD]}), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    with pytest.raises(ApiError) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    assert (refused.value.code, refused.value.reason) == (409, "AlreadyExists")
    assert refused.value.message == 'object is being deleted: configmaps "a" already exists'
    await release(client, CONFIG_MAP, "a", namespace)


# The grace of pods


async def test_unscheduled_pod_is_deleted_at_once(client: Client, namespace: str) -> None:
    created = await client.create(POD, pod("a"), namespace)
    answer = await client.delete(POD, "a", namespace)
    assert (answer["kind"], answer["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 0)
    assert await gone(client, POD, "a", namespace)
    events = await take(client.watch(POD, namespace, resource_version=created["metadata"]["resourceVersion"]), 2)
    assert [event.type for event in events] == ["MODIFIED", "DELETED"]


async def test_scheduled_pod_gets_its_grace_period(client: Client, namespace: str) -> None:
    await client.create(POD, pod("a", spec={"nodeName": "n"}), namespace)
    deleting = await client.delete(POD, "a", namespace)
    metadata = deleting["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 30
    assert metadata["generation"] == 2
    assert await client.get(POD, "a", namespace) == deleting
    await client.delete(POD, "a", namespace, grace_period_seconds=0)
    assert await gone(client, POD, "a", namespace)


async def test_grace_period_comes_from_the_spec(client: Client, namespace: str) -> None:
    await client.create(POD, pod("a", spec={"nodeName": "n", "terminationGracePeriodSeconds": 5}), namespace)
    deleting = await client.delete(POD, "a", namespace)
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 5
    await client.delete(POD, "a", namespace, grace_period_seconds=0)


async def test_grace_period_can_only_be_shortened(client: Client, namespace: str) -> None:
    await client.create(POD, pod("a", spec={"nodeName": "n"}), namespace)
    first = await client.delete(POD, "a", namespace, grace_period_seconds=20)
    shorter = await client.delete(POD, "a", namespace, grace_period_seconds=10)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 10
    assert shorter["metadata"]["deletionTimestamp"] < first["metadata"]["deletionTimestamp"]
    assert await client.delete(POD, "a", namespace, grace_period_seconds=15) == shorter
    await client.delete(POD, "a", namespace, grace_period_seconds=0)
    assert await gone(client, POD, "a", namespace)


async def test_finished_pod_is_deleted_at_once(client: Client, namespace: str) -> None:
    await client.create(POD, pod("a", spec={"nodeName": "n"}), namespace)
    await client.patch(POD, "a", MergePatch({"status": {"phase": "Succeeded"}}), namespace, subresource="status")
    await client.delete(POD, "a", namespace)
    assert await gone(client, POD, "a", namespace)


async def test_grace_period_zero_respects_finalizers(client: Client, namespace: str) -> None:
    held = pod("a", metadata={"finalizers": [HOLD]}, spec={"nodeName": "n"})
    await client.create(POD, held, namespace)
    deleting = await client.delete(POD, "a", namespace, grace_period_seconds=0)
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 0
    assert not await gone(client, POD, "a", namespace)
    await release(client, POD, "a", namespace)
    assert await gone(client, POD, "a", namespace)


async def test_pod_without_finalizers_stays_for_its_grace_period(client: Client, namespace: str) -> None:
    """Taking the finalizer from a pod in its grace does not remove the pod: the kubelet still has to let go."""
    held = pod("a", metadata={"finalizers": [HOLD]}, spec={"nodeName": "n"})
    await client.create(POD, held, namespace)
    await client.delete(POD, "a", namespace)
    await release(client, POD, "a", namespace)
    assert not await gone(client, POD, "a", namespace)
    await client.delete(POD, "a", namespace, grace_period_seconds=0)
    assert await gone(client, POD, "a", namespace)


async def test_grace_period_is_ignored_for_other_kinds(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await client.delete(CONFIG_MAP, "a", namespace, grace_period_seconds=30)
    assert await gone(client, CONFIG_MAP, "a", namespace)


# Bad options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"propagationPolicy": "Frob"},
            'propagationPolicy: Unsupported value: "Frob": supported values: "Foreground", "Background", "Orphan", '
            '"nil"',
        ),
        (
            {"propagationPolicy": "Orphan", "orphanDependents": True},
            'propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set',
        ),
    ],
)
async def test_invalid_delete_options_are_rejected(
    client: Client, namespace: str, options: Object, message: str
) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    with pytest.raises(Invalid) as refused:
        await client.transport.request(Request("DELETE", SECRET.path(namespace, "a"), {}, options))
    assert refused.value.message == f'DeleteOptions.meta.k8s.io "" is invalid: {message}'


async def test_delete_options_of_another_kind_are_rejected(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    with pytest.raises(BadRequest):
        await client.transport.request(
            Request("DELETE", SECRET.path(namespace, "a"), {}, {"apiVersion": "v1", "kind": "Nonsense"})
        )


async def test_delete_options_that_are_no_json_are_rejected(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    with pytest.raises(BadRequest):
        await client.transport.request(Request("DELETE", SECRET.path(namespace, "a"), {}, b"{"))
    assert not await gone(client, SECRET, "a", namespace)
