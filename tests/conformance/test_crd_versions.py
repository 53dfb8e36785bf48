"""Custom kinds with several versions, and their subresources."""

from __future__ import annotations

import dataclasses

import pytest
import pytest_asyncio

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Invalid, NotFound
from sandpool.testing.objects import new
from sandpool.testing.waiting import take, until
from tests.support.api_access import Raw
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import Provide, install

CRD = CUSTOM_RESOURCE_DEFINITION


def two_versions(type: ResourceType) -> Object:
    """v1 is stored and has status and scale; v1alpha1 is deprecated and has neither; v2 is not served."""
    wanted = definition(type, subresources=("status", "scale"))
    [v1] = wanted["spec"]["versions"]
    plain = {key: value for key, value in v1.items() if key != "subresources"}
    wanted["spec"]["versions"] = [
        v1,
        {**plain, "name": "v1alpha1", "storage": False, "deprecated": True, "deprecationWarning": "use v1 instead"},
        {**plain, "name": "v2", "storage": False, "served": False},
    ]
    return wanted


@pytest_asyncio.fixture(loop_scope="session")
async def v1(provide: Provide) -> ResourceType:
    type = custom_type("versions.example.com", "Thing")
    await provide(two_versions(type))
    return type


@pytest.fixture
def v1alpha1(v1: ResourceType) -> ResourceType:
    return dataclasses.replace(v1, version="v1alpha1")


async def test_object_is_served_in_every_version(
    client: Client, namespace: str, v1: ResourceType, v1alpha1: ResourceType
) -> None:
    created = await client.create(v1, new(v1, "a", spec={"n": 1}), namespace)
    other = await client.get(v1alpha1, "a", namespace)
    assert other["apiVersion"] == "versions.example.com/v1alpha1"
    assert (other["spec"], other["metadata"]["uid"]) == ({"n": 1}, created["metadata"]["uid"])
    assert other["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    patched = await client.patch(v1alpha1, "a", MergePatch({"spec": {"n": 2}}), namespace)
    assert patched["apiVersion"] == "versions.example.com/v1alpha1"
    assert (await client.get(v1, "a", namespace))["spec"] == {"n": 2}
    listed = await client.list(v1alpha1, namespace)
    assert listed["apiVersion"] == "versions.example.com/v1alpha1"
    assert [item["apiVersion"] for item in listed["items"]] == ["versions.example.com/v1alpha1"]


async def test_watches_have_the_version_of_their_path(
    client: Client, namespace: str, v1: ResourceType, v1alpha1: ResourceType
) -> None:
    start = (await client.list(v1, namespace))["metadata"]["resourceVersion"]
    await client.create(v1, new(v1, "a", spec={}), namespace)
    await client.delete(v1, "a", namespace)
    events = await take(client.watch(v1alpha1, namespace, resource_version=start), 2)
    assert [(event.type, event.object["apiVersion"]) for event in events] == [
        ("ADDED", "versions.example.com/v1alpha1"),
        ("DELETED", "versions.example.com/v1alpha1"),
    ]


async def test_unserved_version_is_not_found(client: Client, namespace: str, v1: ResourceType) -> None:
    with pytest.raises(NotFound):
        await client.list(dataclasses.replace(v1, version="v2"), namespace)


async def test_subresources_belong_to_a_version(
    client: Client, namespace: str, v1: ResourceType, v1alpha1: ResourceType
) -> None:
    await client.create(v1, new(v1, "a", spec={"replicas": 2}), namespace)
    assert (await client.get(v1, "a", namespace, subresource="scale"))["spec"] == {"replicas": 2}
    with pytest.raises(NotFound):
        await client.get(v1alpha1, "a", namespace, subresource="scale")
    patched = await client.patch(v1alpha1, "a", MergePatch({"status": {"n": 1}}), namespace)
    assert patched["status"] == {"n": 1}


async def test_deprecated_version_warns(raw: Raw, namespace: str, v1: ResourceType, v1alpha1: ResourceType) -> None:
    answer = await raw("GET", v1alpha1.path(namespace))
    assert answer.warnings == ('299 - "use v1 instead"',)
    assert (await raw("GET", v1.path(namespace))).warnings == ()


async def test_stable_version_is_preferred(raw: Raw, v1: ResourceType) -> None:
    group = (await raw("GET", "/apis/versions.example.com")).json()
    assert [each["version"] for each in group["versions"]] == ["v1", "v1alpha1"]
    assert group["preferredVersion"]["version"] == "v1"


async def test_each_version_prunes_fields_it_does_not_know(client: Client, namespace: str) -> None:
    """Without conversion the stored object has all fields; each version prunes what it does not know on the way."""
    type = custom_type(f"{namespace}.example.com")

    def schema(**properties: Object) -> Object:
        spec = {"type": "object", "properties": properties}
        return {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}

    wanted = definition(type)
    number: Object = {"type": "integer"}
    wanted["spec"]["versions"] = [
        {"name": "v1", "served": True, "storage": True, "schema": schema(a=number, b=number)},
        {"name": "v1beta1", "served": True, "storage": False, "schema": schema(a=number)},
    ]
    await install(client, wanted)
    older = dataclasses.replace(type, version="v1beta1")
    await client.create(type, new(type, "x", spec={"a": 1, "b": 2}), namespace)
    assert (await client.get(older, "x", namespace))["spec"] == {"a": 1}
    created = await client.create(older, new(older, "y", spec={"a": 1, "b": 2}), namespace)
    assert created["spec"] == {"a": 1}


async def test_stored_versions_are_recorded(client: Client, namespace: str) -> None:
    type = custom_type(f"{namespace}.example.com")
    wanted = definition(type)
    [v1] = wanted["spec"]["versions"]
    wanted["spec"]["versions"] = [v1, {**v1, "name": "v2", "storage": False}]
    await install(client, wanted)
    swapped = [{**v1, "storage": False}, {**v1, "name": "v2"}]
    await client.patch(CRD, type.group_resource, MergePatch({"spec": {"versions": swapped}}))

    async def remembered() -> bool:
        current = await client.get(CRD, type.group_resource)
        return bool(current["status"]["storedVersions"] == ["v1", "v2"])

    await until(remembered)
    with pytest.raises(Invalid, match=r"status.storedVersions\[0\]: Invalid value: .v1.: missing from spec.versions"):
        await client.patch(CRD, type.group_resource, MergePatch({"spec": {"versions": swapped[1:]}}))
