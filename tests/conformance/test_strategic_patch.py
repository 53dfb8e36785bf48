"""Strategic merge patches: merge keys, directives and orders."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, SERVICE, SERVICE_ACCOUNT
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, StrategicPatch
from sandpool.kube.errors import ApiError, Conflict, UnsupportedMediaType
from sandpool.testing.objects import new


def deployment(containers: list[Object], **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers}}
    return new(DEPLOYMENT, "a", spec={"selector": {"matchLabels": {"app": "a"}}, "template": template, **spec})


TWO: list[Object] = [
    {
        "name": "one",
        "image": "i1",
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "args": ["x", "y"],
        "ports": [{"containerPort": 80}, {"containerPort": 81}],
    },
    {"name": "two", "image": "i2"},
]


async def patched_containers(client: Client, namespace: str, pod_spec: Object) -> list[Object]:
    await client.create(DEPLOYMENT, deployment(TWO), namespace)
    patch = StrategicPatch({"spec": {"template": {"spec": pod_spec}}})
    patched = await client.patch(DEPLOYMENT, "a", patch, namespace)
    containers: list[Object] = patched["spec"]["template"]["spec"]["containers"]
    return containers


async def test_strategic_patch_merges_lists_by_key(client: Client, namespace: str) -> None:
    one, two = await patched_containers(client, namespace, {"containers": [{"name": "one", "image": "i3"}]})
    assert (one["name"], one["image"], two["name"], two["image"]) == ("one", "i3", "two", "i2")
    assert one["args"] == ["x", "y"]


async def test_new_items_come_first(client: Client, namespace: str) -> None:
    containers = await patched_containers(client, namespace, {"containers": [{"name": "three", "image": "i3"}]})
    assert [each["name"] for each in containers] == ["three", "one", "two"]


async def test_nested_lists_merge_by_their_own_key(client: Client, namespace: str) -> None:
    change = {"name": "one", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}
    one, _ = await patched_containers(client, namespace, {"containers": [change]})
    assert {each["name"]: each["value"] for each in one["env"]} == {"A": "1", "B": "3", "C": "4"}


async def test_ports_merge_by_container_port(client: Client, namespace: str) -> None:
    change = {"name": "one", "ports": [{"containerPort": 81, "name": "http"}]}
    one, _ = await patched_containers(client, namespace, {"containers": [change]})
    assert {each["containerPort"]: each.get("name") for each in one["ports"]} == {80: None, 81: "http"}


async def test_lists_of_scalars_are_replaced(client: Client, namespace: str) -> None:
    one, _ = await patched_containers(client, namespace, {"containers": [{"name": "one", "args": ["z"]}]})
    assert one["args"] == ["z"]


async def test_patch_delete_removes_an_item(client: Client, namespace: str) -> None:
    containers = await patched_containers(client, namespace, {"containers": [{"name": "two", "$patch": "delete"}]})
    assert [each["name"] for each in containers] == ["one"]


async def test_patch_delete_removes_a_nested_item(client: Client, namespace: str) -> None:
    change = {"name": "one", "env": [{"name": "A", "$patch": "delete"}]}
    one, _ = await patched_containers(client, namespace, {"containers": [change]})
    assert one["env"] == [{"name": "B", "value": "2"}]


async def test_patch_replace_replaces_the_list(client: Client, namespace: str) -> None:
    change = [{"name": "three", "image": "i3"}, {"$patch": "replace"}]
    containers = await patched_containers(client, namespace, {"containers": change})
    assert [each["name"] for each in containers] == ["three"]


async def test_patch_replace_replaces_a_map(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1", "b": "2"}), namespace)
    patched = await client.patch(CONFIG_MAP, "a", StrategicPatch({"data": {"$patch": "replace", "c": "3"}}), namespace)
    assert patched["data"] == {"c": "3"}


async def test_patch_delete_removes_a_map(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1"}, binaryData={"b": "AA=="}), namespace)
    patched = await client.patch(CONFIG_MAP, "a", StrategicPatch({"data": {"$patch": "delete"}}), namespace)
    assert "data" not in patched
    assert patched["binaryData"] == {"b": "AA=="}


async def test_null_removes_a_field(client: Client, namespace: str) -> None:
    one, _ = await patched_containers(client, namespace, {"containers": [{"name": "one", "args": None, "env": None}]})
    assert "args" not in one
    assert "env" not in one


async def test_set_element_order_orders_the_list(client: Client, namespace: str) -> None:
    change = {
        "$setElementOrder/containers": [{"name": "two"}, {"name": "three"}, {"name": "one"}],
        "containers": [{"name": "three", "image": "i3"}],
    }
    containers = await patched_containers(client, namespace, change)
    assert [each["name"] for each in containers] == ["two", "three", "one"]


async def test_set_element_order_alone_orders_the_list(client: Client, namespace: str) -> None:
    change = {"$setElementOrder/containers": [{"name": "two"}, {"name": "one"}]}
    containers = await patched_containers(client, namespace, change)
    assert [each["name"] for each in containers] == ["two", "one"]


async def test_delete_from_primitive_list_removes_values(client: Client, namespace: str) -> None:
    """Finalizers are a list of plain values that merges."""
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": ["x.io/a", "x.io/b"]}), namespace)
    patched = await client.patch(CONFIG_MAP, "a", StrategicPatch({"metadata": {"finalizers": ["x.io/c"]}}), namespace)
    assert patched["metadata"]["finalizers"] == ["x.io/c", "x.io/a", "x.io/b"]
    patched = await client.patch(
        CONFIG_MAP,
        "a",
        StrategicPatch({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/a", "x.io/c"]}}),
        namespace,
    )
    assert patched["metadata"]["finalizers"] == ["x.io/b"]
    await client.patch(CONFIG_MAP, "a", StrategicPatch({"metadata": {"finalizers": None}}), namespace)


async def test_retain_keys_drops_other_keys(client: Client, namespace: str) -> None:
    """A deployment strategy is a union: naming the keys to retain drops the settings of the other strategy."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    await client.create(DEPLOYMENT, deployment(TWO, strategy=rolling), namespace)
    patch = StrategicPatch({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}})
    patched = await client.patch(DEPLOYMENT, "a", patch, namespace)
    assert patched["spec"]["strategy"] == {"type": "Recreate"}


async def test_owner_references_merge_by_uid(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIG_MAP, new(CONFIG_MAP, "owner"), namespace)
    uid = owner["metadata"]["uid"]
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"ownerReferences": [mine]}), namespace)
    patch = StrategicPatch({"metadata": {"ownerReferences": [{"uid": uid, "controller": True}]}})
    patched = await client.patch(CONFIG_MAP, "a", patch, namespace)
    assert patched["metadata"]["ownerReferences"] == [{**mine, "controller": True}]
    patch = StrategicPatch({"metadata": {"ownerReferences": [{"uid": uid, "$patch": "delete"}]}})
    patched = await client.patch(CONFIG_MAP, "a", patch, namespace)
    assert "ownerReferences" not in patched["metadata"]


async def test_service_ports_merge_by_port(client: Client, namespace: str) -> None:
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81}]
    await client.create(SERVICE, new(SERVICE, "a", spec={"ports": ports}), namespace)
    patch = StrategicPatch({"spec": {"ports": [{"port": 81, "targetPort": "http"}]}})
    patched = await client.patch(SERVICE, "a", patch, namespace)
    assert {each["port"]: each["targetPort"] for each in patched["spec"]["ports"]} == {80: 80, 81: "http"}


async def test_lists_without_a_merge_key_are_replaced(client: Client, namespace: str) -> None:
    account = new(SERVICE_ACCOUNT, "a", imagePullSecrets=[{"name": "one"}])
    await client.create(SERVICE_ACCOUNT, account, namespace)
    patch = StrategicPatch({"imagePullSecrets": [{"name": "two"}]})
    patched = await client.patch(SERVICE_ACCOUNT, "a", patch, namespace)
    assert patched["imagePullSecrets"] == [{"name": "two"}]


async def test_resource_version_in_a_patch_is_a_precondition(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    patch = StrategicPatch(
        {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"k": "1"}}
    )
    await client.patch(CONFIG_MAP, "a", patch, namespace)
    with pytest.raises(Conflict, match=r"the object has been modified"):
        await client.patch(CONFIG_MAP, "a", patch, namespace)


async def test_item_without_its_merge_key_is_rejected(client: Client, namespace: str) -> None:
    await client.create(DEPLOYMENT, deployment(TWO), namespace)
    patch = StrategicPatch({"spec": {"template": {"spec": {"containers": [{"image": "i"}]}}}})
    with pytest.raises(ApiError, match=r"does not contain declared merge key: name") as refused:
        await client.patch(DEPLOYMENT, "a", patch, namespace)
    assert refused.value.code in (400, 500)


async def test_unknown_directive_is_rejected(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1"}), namespace)
    with pytest.raises(ApiError) as refused:
        await client.patch(CONFIG_MAP, "a", StrategicPatch({"data": {"$patch": "frob"}}), namespace)
    assert refused.value.code in (400, 422, 500)


async def test_custom_kinds_have_no_strategic_patch(client: Client, namespace: str, widgets: ResourceType) -> None:
    await client.create(widgets, new(widgets, "a", spec={"n": 1}), namespace)
    with pytest.raises(UnsupportedMediaType) as refused:
        await client.patch(widgets, "a", StrategicPatch({"spec": {"n": 2}}), namespace)
    assert refused.value.message == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )
