"""Replacing objects with PUT, and the optimistic lock."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, LEASE, SECRET
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, BadRequest, Conflict, Invalid, NotFound
from sandpool.testing.objects import new
from tests.support.api_access import Raw
from tests.support.extra_verbs import replace


async def test_update_replaces_the_whole_object(client: Client, namespace: str) -> None:
    created = await client.create(
        CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"labels": {"l": "1"}}, data={"a": "1", "b": "2"}), namespace
    )
    metadata = {"resourceVersion": created["metadata"]["resourceVersion"]}
    updated = await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", metadata=metadata, data={"c": "3"}), namespace)
    assert updated["data"] == {"c": "3"}
    assert "labels" not in updated["metadata"]
    assert int(updated["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
    assert await client.get(CONFIG_MAP, "a", namespace) == updated


async def test_update_keeps_the_identity(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    changed = new(
        CONFIG_MAP, "a", metadata={"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 9}, data={"k": "v"}
    )
    updated = await replace(client, CONFIG_MAP, changed, namespace)
    for field in ("uid", "creationTimestamp", "namespace", "name"):
        assert updated["metadata"][field] == created["metadata"][field]
    assert "generation" not in updated["metadata"]


async def test_update_without_a_version_is_last_writer_wins(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), namespace)
    for value in ("2", "3"):
        updated = await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": value}), namespace)
        assert updated["data"] == {"k": value}


async def test_update_with_a_stale_version_conflicts(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await replace(client, CONFIG_MAP, {**created, "data": {"k": "1"}}, namespace)
    with pytest.raises(Conflict) as refused:
        await replace(client, CONFIG_MAP, {**created, "data": {"k": "2"}}, namespace)
    assert refused.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": (
            'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
            "please apply your changes to the latest version and try again"
        ),
        "reason": "Conflict",
        "details": {"name": "a", "kind": "configmaps"},
        "code": 409,
    }
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"k": "1"}


async def test_update_with_a_future_version_conflicts(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    future = str(int(created["metadata"]["resourceVersion"]) + 1_000_000)
    with pytest.raises(Conflict, match=r"the object has been modified"):
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"resourceVersion": future}), namespace)


async def test_update_with_a_malformed_version_is_rejected(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(ApiError):
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"resourceVersion": "x"}), namespace)


async def test_update_with_another_uid_conflicts(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    other = "00000000-0000-0000-0000-000000000001"
    with pytest.raises(Conflict) as refused:
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"uid": other}), namespace)
    assert refused.value.message.endswith(
        f"Precondition failed: UID in precondition: {other}, UID in object meta: {created['metadata']['uid']}"
    )


async def test_update_without_changes_keeps_the_version(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), namespace)
    for same in (created, new(CONFIG_MAP, "a", data={"k": "v"})):
        updated = await replace(client, CONFIG_MAP, same, namespace, fieldManager="sandpool")
        assert updated["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_update_does_not_create_a_missing_object(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=r'configmaps "missing" not found'):
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "missing"), namespace)


async def test_update_creates_a_missing_lease(raw: Raw, namespace: str) -> None:
    """Leases are among the few kinds that a PUT may create."""
    answer = await raw(
        "PUT",
        LEASE.path(namespace, "a"),
        body=b'{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a"},"spec":{}}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status == 201
    assert answer.json()["metadata"]["name"] == "a"


async def test_another_name_in_the_body_is_rejected(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(BadRequest) as refused:
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "b"), namespace, name="a")
    assert refused.value.message == "the name of the object (b) does not match the name on the URL (a)"


async def test_name_in_the_body_is_required(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(BadRequest, match=r"name must be provided"):
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, None), namespace, name="a")


async def test_another_namespace_in_the_body_is_rejected(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(BadRequest, match=r"the namespace of the provided object does not match the namespace sent"):
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"namespace": "other"}), namespace)


async def test_immutable_config_map_cannot_be_changed(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}, immutable=True), namespace)
    with pytest.raises(Invalid) as refused:
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "w"}, immutable=True), namespace)
    assert refused.value.message == (
        'ConfigMap "a" is invalid: data: Forbidden: field is immutable when `immutable` is set'
    )
    with pytest.raises(Invalid, match=r"immutable: Forbidden: field is immutable when `immutable` is set"):
        await replace(client, CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), namespace)


async def test_type_of_a_secret_is_immutable(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    with pytest.raises(Invalid, match=r"type: Invalid value: .*: field is immutable"):
        await replace(client, SECRET, new(SECRET, "a", type="example.com/other"), namespace)


async def test_update_of_a_custom_object_requires_a_version(
    client: Client, namespace: str, widgets: ResourceType
) -> None:
    """Custom resources do not allow unconditional updates."""
    created = await client.create(widgets, new(widgets, "a", spec={"n": 1}), namespace)
    with pytest.raises(Invalid) as refused:
        await replace(client, widgets, new(widgets, "a", spec={"n": 2}), namespace)
    assert refused.value.message == (
        'widgets.conformance.example.com "a" is invalid: '
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    )
    updated = await replace(client, widgets, {**created, "spec": {"n": 2}}, namespace)
    assert updated["spec"] == {"n": 2}
