"""Deleting many objects with one request."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD, SECRET
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import BadRequest, Conflict
from sandpool.testing.objects import new, pod
from tests.support.extra_verbs import delete_collection


async def names(client: Client, namespace: str, type: ResourceType = SECRET) -> list[str]:
    return [item["metadata"]["name"] for item in (await client.list(type, namespace))["items"]]


async def test_delete_collection_deletes_all_objects_of_a_namespace(client: Client, namespace: str) -> None:
    for name in "ab":
        await client.create(SECRET, new(SECRET, name), namespace)
    answer = await delete_collection(client, SECRET, namespace)
    assert answer["kind"] == "SecretList"
    assert sorted(item["metadata"]["name"] for item in answer["items"]) == ["a", "b"]
    assert await names(client, namespace) == []


async def test_delete_collection_of_nothing_answers_an_empty_list(client: Client, namespace: str) -> None:
    answer = await delete_collection(client, SECRET, namespace)
    assert (answer["kind"], answer["items"]) == ("SecretList", [])


async def test_delete_collection_honours_a_label_selector(client: Client, namespace: str) -> None:
    for name, label in (("a", "x"), ("b", "y"), ("c", "x")):
        await client.create(SECRET, new(SECRET, name, metadata={"labels": {"l": label}}), namespace)
    answer = await delete_collection(client, SECRET, namespace, labelSelector="l=x")
    assert sorted(item["metadata"]["name"] for item in answer["items"]) == ["a", "c"]
    assert await names(client, namespace) == ["b"]


async def test_delete_collection_honours_a_field_selector(client: Client, namespace: str) -> None:
    for name in "abc":
        await client.create(SECRET, new(SECRET, name), namespace)
    await delete_collection(client, SECRET, namespace, fieldSelector="metadata.name!=b")
    assert await names(client, namespace) == ["b"]


async def test_delete_collection_rejects_an_invalid_selector(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    with pytest.raises(BadRequest):
        await delete_collection(client, SECRET, namespace, labelSelector="a b")
    assert await names(client, namespace) == ["a"]


async def test_delete_collection_works_for_a_custom_kind(client: Client, namespace: str, widgets: ResourceType) -> None:
    for name in "ab":
        await client.create(widgets, new(widgets, name, spec={}), namespace)
    answer = await delete_collection(client, widgets, namespace, fieldSelector="metadata.name=a")
    assert answer["kind"] == "WidgetList"
    assert await names(client, namespace, widgets) == ["b"]


async def test_delete_collection_marks_objects_with_finalizers(client: Client, namespace: str) -> None:
    held = new(CONFIG_MAP, "held", metadata={"finalizers": ["example.com/hold"], "labels": {"l": "x"}})
    await client.create(CONFIG_MAP, held, namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "free", metadata={"labels": {"l": "x"}}), namespace)
    await delete_collection(client, CONFIG_MAP, namespace, labelSelector="l=x")
    listed = await client.list(CONFIG_MAP, namespace, label_selector="l=x")
    [left] = listed["items"]
    assert left["metadata"]["name"] == "held"
    assert left["metadata"]["deletionTimestamp"]
    await client.patch(CONFIG_MAP, "held", MergePatch({"metadata": {"finalizers": None}}), namespace)


async def test_delete_collection_honours_delete_options(client: Client, namespace: str) -> None:
    for name in "ab":
        await client.create(POD, pod(name, spec={"nodeName": "n"}), namespace)
    await delete_collection(client, POD, namespace, options={"gracePeriodSeconds": 7})
    listed = await client.list(POD, namespace)
    assert [item["metadata"]["deletionGracePeriodSeconds"] for item in listed["items"]] == [7, 7]
    await delete_collection(client, POD, namespace, gracePeriodSeconds="0")
    assert await names(client, namespace, POD) == []


async def test_delete_collection_with_a_failed_precondition_conflicts(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    with pytest.raises(Conflict):
        await delete_collection(client, SECRET, namespace, options={"preconditions": {"uid": "other"}})
    assert await names(client, namespace) == ["a"]
