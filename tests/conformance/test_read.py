"""Getting and listing objects."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE, NODE, SECRET
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, NotFound
from sandpool.testing.objects import new
from tests.support.api_access import ApiEndpoint, Raw
from tests.support.api_objects import custom_type


def names(listed: SharedObject) -> list[str]:
    items = listed["items"]
    assert isinstance(items, list)
    return [item["metadata"]["name"] for item in items]


async def test_get_of_a_missing_object_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound) as refused:
        await client.get(CONFIG_MAP, "missing", namespace)
    assert refused.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "missing" not found',
        "reason": "NotFound",
        "details": {"name": "missing", "kind": "configmaps"},
        "code": 404,
    }


async def test_get_of_a_missing_object_names_its_group(client: Client, namespace: str, gadgets: ResourceType) -> None:
    with pytest.raises(NotFound) as refused:
        await client.get(gadgets, "missing", namespace)
    assert refused.value.message == 'gadgets.conformance.example.com "missing" not found'
    assert refused.value.details == {"name": "missing", "group": "conformance.example.com", "kind": "gadgets"}


async def test_get_in_a_missing_namespace_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=r'configmaps "a" not found'):
        await client.get(CONFIG_MAP, "a", namespace + "-missing")


async def test_unknown_kind_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.list(custom_type("nowhere.example.com"), namespace)


@pytest.mark.parametrize("path", ["/apis/nowhere.example.com/v1", "/api/v2", "/api/v1/nothings", "/nowhere"])
async def test_unknown_path_is_not_found(raw: Raw, path: str) -> None:
    answer = await raw("GET", path)
    assert answer.status == 404


async def test_list_of_nothing_is_an_empty_list(client: Client, namespace: str) -> None:
    listed = await client.list(SECRET, namespace)
    assert (listed["apiVersion"], listed["kind"], listed["items"]) == ("v1", "SecretList", [])
    assert int(listed["metadata"]["resourceVersion"]) > 0


async def test_list_of_a_missing_namespace_is_empty(client: Client, namespace: str) -> None:
    assert (await client.list(CONFIG_MAP, namespace + "-missing"))["items"] == []


async def test_list_is_ordered_by_name(client: Client, namespace: str) -> None:
    for name in ("b", "c", "a-b", "a"):
        await client.create(SECRET, new(SECRET, name), namespace)
    assert names(await client.list(SECRET, namespace)) == ["a", "a-b", "b", "c"]


async def test_items_of_a_built_in_list_have_no_kind(client: Client, namespace: str) -> None:
    """Built-in kinds leave it out, because the list has said it; clients that need it fill it in."""
    created = await client.create(SECRET, new(SECRET, "a"), namespace)
    [item] = (await client.list(SECRET, namespace))["items"]
    assert "kind" not in item
    assert "apiVersion" not in item
    assert {"kind": "Secret", "apiVersion": "v1", **item} == created


async def test_items_of_a_custom_list_have_their_kind(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace)
    listed = await client.list(gadgets, namespace)
    assert (listed["apiVersion"], listed["kind"]) == ("conformance.example.com/v1", "GadgetList")
    assert listed["items"] == [created]


async def test_list_across_namespaces_is_ordered_by_namespace_and_name(client: Client, namespace: str) -> None:
    """The order is that of "namespace/name", in which a dash comes before the slash."""
    other = namespace + "-other"
    await client.create(NAMESPACE, new(NAMESPACE, other))
    for where in (namespace, other):
        await client.create(SECRET, new(SECRET, namespace), where)
    listed = await client.list(SECRET, field_selector=f"metadata.name={namespace}")
    assert [item["metadata"]["namespace"] for item in listed["items"]] == [other, namespace]


async def test_cluster_scoped_kind_is_listed(client: Client, namespace: str) -> None:
    await client.create(NODE, new(NODE, namespace))
    listed = await client.list(NODE, field_selector=f"metadata.name={namespace}")
    assert listed["kind"] == "NodeList"
    assert names(listed) == [namespace]
    await client.delete(NODE, namespace)


async def test_resource_version_of_a_list_grows_with_writes(client: Client, namespace: str) -> None:
    before = int((await client.list(SECRET, namespace))["metadata"]["resourceVersion"])
    created = await client.create(SECRET, new(SECRET, "a"), namespace)
    after = int((await client.list(SECRET, namespace))["metadata"]["resourceVersion"])
    assert before < int(created["metadata"]["resourceVersion"]) <= after


# How fresh a list has to be


async def test_list_at_version_0_is_answered(client: Client, namespace: str) -> None:
    """resourceVersion=0 may be answered from a cache, so only what such a cache is sure to have can be asserted."""
    listed = await client.list(NAMESPACE, resource_version="0", field_selector="metadata.name=default")
    assert names(listed) == ["default"]


async def test_list_not_older_than_a_version_has_newer_objects(client: Client, namespace: str) -> None:
    created = await client.create(SECRET, new(SECRET, "a"), namespace)
    version = created["metadata"]["resourceVersion"]
    listed = await client.list(SECRET, namespace, resource_version=version, resource_version_match=r"NotOlderThan")
    assert names(listed) == ["a"]


async def test_list_at_an_exact_version_has_no_newer_objects(client: Client, namespace: str) -> None:
    created = await client.create(SECRET, new(SECRET, "a"), namespace)
    version = created["metadata"]["resourceVersion"]
    await client.create(SECRET, new(SECRET, "b"), namespace)
    await client.delete(SECRET, "a", namespace)
    listed = await client.list(SECRET, namespace, resource_version=version, resource_version_match=r"Exact", limit=10)
    assert names(listed) == ["a"]
    assert listed["metadata"]["resourceVersion"] == version


async def test_list_at_a_future_version_is_rejected(client: Client, namespace: str) -> None:
    listed = await client.list(SECRET, namespace)
    future = str(int(listed["metadata"]["resourceVersion"]) + 1_000_000)
    with pytest.raises(ApiError) as refused:
        await client.list(SECRET, namespace, resource_version=future, resource_version_match=r"Exact")
    assert (refused.value.code, refused.value.reason) == (504, "Timeout")
    assert refused.value.message.startswith(f"Timeout: Too large resource version: {future}, current: ")
    assert refused.value.details["causes"] == [
        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    ]


@pytest.mark.parametrize(
    ("version", "match", "message"),
    [
        ("x", None, "resourceVersion: Invalid value"),
        ("-1", None, "resourceVersion: Invalid value"),
        ("1", "Sometimes", "supported values: .Exact., .NotOlderThan., .."),
        (None, "Exact", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ("0", "Exact", "resourceVersionMatch .exact. is forbidden for resourceVersion .0."),
    ],
)
async def test_invalid_resource_version_is_rejected(
    client: Client, namespace: str, version: str | None, match: str | None, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        await client.list(SECRET, namespace, resource_version=version, resource_version_match=match)
    assert refused.value.code in (400, 422)


async def test_get_at_an_existing_version_is_answered(client: Client, namespace: str) -> None:
    created = await client.create(SECRET, new(SECRET, "a"), namespace)
    version = created["metadata"]["resourceVersion"]
    assert await client.get(SECRET, "a", namespace, resource_version=version) == created


# Methods


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "configmaps/a"),
        ("PUT", "configmaps"),
        ("PATCH", "configmaps"),
    ],
)
async def test_wrong_method_is_not_allowed(api: ApiEndpoint, raw: Raw, namespace: str, method: str, path: str) -> None:
    answer = await raw(method, f"/api/v1/namespaces/{namespace}/{path}", body=b"{}")
    assert answer.status == 405
    assert answer.json()["reason"] == "MethodNotAllowed"
    assert answer.json()["message"] == "the server does not allow this method on the requested resource"


async def test_unknown_subresource_is_not_found(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(NotFound, match=r"the server could not find the requested resource"):
        await client.get(CONFIG_MAP, "a", namespace, subresource="status")


async def test_head_is_not_served(api: ApiEndpoint, raw: Raw, namespace: str) -> None:
    answer = await raw("HEAD", f"/api/v1/namespaces/{namespace}/configmaps/a")
    assert answer.status in (404, 405)


async def test_unknown_query_parameters_are_ignored(api: ApiEndpoint, raw: Raw, namespace: str) -> None:
    answer = await raw("GET", f"/api/v1/namespaces/{namespace}/secrets?nonsense=1&pretty=false")
    assert answer.status == 200
