"""Creating objects: what the server adds, what it refuses, and in which words."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE, POD, SECRET, STORAGE_CLASS
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, ApiError, BadRequest, Invalid, MethodNotAllowed, NotFound
from sandpool.testing.objects import new, pod
from tests.support.api_access import ApiEndpoint, Raw


async def test_created_object_has_uid_version_and_creation_time(client: Client, namespace: str) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), namespace)
    metadata = created["metadata"]
    assert (created["apiVersion"], created["kind"], created["data"]) == ("v1", "ConfigMap", {"k": "v"})
    assert (metadata["name"], metadata["namespace"]) == ("a", namespace)
    assert str(uuid.UUID(metadata["uid"])) == metadata["uid"]
    assert int(metadata["resourceVersion"]) > 0
    assert before <= datetime.strptime(metadata["creationTimestamp"], "%Y-%m-%dT%H:%M:%S%z") <= datetime.now(UTC)
    assert await client.get(CONFIG_MAP, "a", namespace) == created


async def test_create_answers_201(api: ApiEndpoint, raw: Raw, namespace: str) -> None:
    answer = await raw(
        "POST",
        f"/api/v1/namespaces/{namespace}/configmaps",
        body=b'{"metadata":{"name":"a"}}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status == 201
    assert answer.json()["kind"] == "ConfigMap"


async def test_identity_in_the_body_is_replaced(client: Client, namespace: str) -> None:
    mine = {
        "uid": "00000000-0000-0000-0000-000000000001",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "generation": 7,
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 30,
        "selfLink": "/mine",
    }
    created = await client.create(POD, pod("a", metadata=mine), namespace)
    metadata = created["metadata"]
    assert metadata["uid"] != mine["uid"]
    assert metadata["creationTimestamp"] != mine["creationTimestamp"]
    assert metadata["generation"] == 1
    assert not {"deletionTimestamp", "deletionGracePeriodSeconds"} & metadata.keys()


async def test_resource_version_must_not_be_set_on_create(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"resourceVersion": "1"}), namespace)
    assert refused.value.code == 500
    assert refused.value.message == "resourceVersion should not be set on objects to be created"


async def test_every_create_gets_a_new_uid(client: Client, namespace: str) -> None:
    first = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    second = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert int(first["metadata"]["resourceVersion"]) < int(second["metadata"]["resourceVersion"])


async def test_create_of_an_existing_name_is_already_exists(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(AlreadyExists) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    assert refused.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "a" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "a", "kind": "configmaps"},
        "code": 409,
    }


async def test_name_is_free_in_another_namespace_and_kind(client: Client, namespace: str) -> None:
    other = namespace + "-other"
    await client.create(NAMESPACE, new(NAMESPACE, other))
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), other)
    await client.create(SECRET, new(SECRET, "a"), namespace)


async def test_cluster_scoped_object_has_no_namespace(client: Client, namespace: str) -> None:
    created = await client.create(STORAGE_CLASS, new(STORAGE_CLASS, namespace, provisioner="example.com/none"))
    assert "namespace" not in created["metadata"]
    assert await client.get(STORAGE_CLASS, namespace) == created
    with pytest.raises(AlreadyExists) as refused:
        await client.create(STORAGE_CLASS, new(STORAGE_CLASS, namespace, provisioner="example.com/none"))
    assert refused.value.message == f'storageclasses.storage.k8s.io "{namespace}" already exists'
    assert refused.value.details == {"name": namespace, "group": "storage.k8s.io", "kind": "storageclasses"}
    await client.delete(STORAGE_CLASS, namespace)


# Names


async def test_generate_name_appends_five_characters(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, None, metadata={"generateName": "made-"}), namespace)
    assert re.fullmatch("made-[bcdfghjklmnpqrstvwxz2456789]{5}", created["metadata"]["name"])
    assert created["metadata"]["generateName"] == "made-"


async def test_generate_name_truncates_a_long_prefix(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, None, metadata={"generateName": "m" * 70}), namespace)
    assert re.fullmatch("m{58}[a-z0-9]{5}", created["metadata"]["name"])


async def test_name_wins_over_generate_name(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"generateName": "made-"}), namespace)
    assert created["metadata"]["name"] == "a"


async def test_name_is_required(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, None), namespace)
    assert refused.value.message == (
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'
    )
    assert refused.value.details == {
        "kind": "ConfigMap",
        "causes": [
            {
                "reason": "FieldValueRequired",
                "message": "Required value: name or generateName is required",
                "field": "metadata.name",
            }
        ],
    }


SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


@pytest.mark.parametrize("name", ["A", "a_b", "-a", "a-", "a..b", "ä", "a b"])
async def test_invalid_name_is_rejected(client: Client, namespace: str, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), namespace)
    message = f'Invalid value: "{name}": {SUBDOMAIN}'
    assert refused.value.message == f'ConfigMap "{name}" is invalid: metadata.name: {message}'
    assert refused.value.details == {
        "name": name,
        "kind": "ConfigMap",
        "causes": [{"reason": "FieldValueInvalid", "message": message, "field": "metadata.name"}],
    }


async def test_name_has_at_most_253_characters(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a" * 253), namespace)
    with pytest.raises(Invalid, match=r"must be no more than 253 characters"):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a" * 254), namespace)


@pytest.mark.parametrize("name", ["a.b", "a" * 64])
async def test_namespace_name_must_be_a_dns_label(client: Client, name: str) -> None:
    with pytest.raises(Invalid, match=r"metadata.name: Invalid value"):
        await client.create(NAMESPACE, new(NAMESPACE, name))


# Disagreements between the path and the body


async def test_namespace_comes_from_the_path(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    assert created["metadata"]["namespace"] == namespace


async def test_another_namespace_in_the_body_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"namespace": "other"}), namespace)
    assert refused.value.message == (
        "the namespace of the provided object does not match the namespace sent on the request"
    )


async def test_namespace_of_a_cluster_scoped_object_is_dropped(client: Client, namespace: str) -> None:
    given = new(STORAGE_CLASS, namespace, metadata={"namespace": namespace}, provisioner="example.com/none")
    created = await client.create(STORAGE_CLASS, given)
    assert "namespace" not in created["metadata"]
    await client.delete(STORAGE_CLASS, namespace)


async def test_another_kind_in_the_body_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(BadRequest, match=r'Secret in version "v1" cannot be handled as a ConfigMap'):
        await client.create(CONFIG_MAP, new(SECRET, "a"), namespace)


async def test_another_version_in_the_body_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(BadRequest, match=r'ConfigMap in version "v2" cannot be handled as a ConfigMap'):
        await client.create(CONFIG_MAP, {**new(CONFIG_MAP, "a"), "apiVersion": "v2"}, namespace)


async def test_create_in_a_missing_namespace_is_not_found(client: Client, namespace: str) -> None:
    missing = namespace + "-missing"
    with pytest.raises(NotFound) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), missing)
    assert refused.value.message == f'namespaces "{missing}" not found'
    assert refused.value.details == {"name": missing, "kind": "namespaces"}


async def test_create_of_a_namespaced_kind_without_namespace_is_rejected(client: Client) -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"))
    assert refused.value.message == "the server does not allow this method on the requested resource"
