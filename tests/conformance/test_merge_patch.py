"""JSON merge patches."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, BadRequest, Conflict, Invalid, NotFound
from sandpool.kube.transport import MERGE_PATCH, Request
from sandpool.testing.objects import new, pod


async def test_merge_patch_merges_objects(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1", "b": "2"}), namespace)
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"b": "3", "c": "4"}}), namespace)
    assert patched["data"] == {"a": "1", "b": "3", "c": "4"}
    assert await client.get(CONFIG_MAP, "a", namespace) == patched


async def test_null_removes_a_field(client: Client, namespace: str) -> None:
    labels = {"keep": "1", "drop": "2"}
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"labels": labels}, data={"k": "v"}), namespace)
    patch = MergePatch({"metadata": {"labels": {"drop": None, "never-there": None}}, "data": None})
    patched = await client.patch(CONFIG_MAP, "a", patch, namespace)
    assert patched["metadata"]["labels"] == {"keep": "1"}
    assert "data" not in patched


async def test_merge_patch_replaces_lists(client: Client, namespace: str, widgets: ResourceType) -> None:
    await client.create(widgets, new(widgets, "a", spec={"list": [{"n": 1}, {"n": 2}], "m": {"x": 1}}), namespace)
    patched = await client.patch(widgets, "a", MergePatch({"spec": {"list": [{"o": 3}]}}), namespace)
    assert patched["spec"] == {"list": [{"o": 3}], "m": {"x": 1}}


async def test_merge_patch_changes_the_type_of_a_value(client: Client, namespace: str, widgets: ResourceType) -> None:
    await client.create(widgets, new(widgets, "a", spec={"x": {"y": 1}, "z": 1}), namespace)
    patched = await client.patch(widgets, "a", MergePatch({"spec": {"x": [1], "z": {"n": None, "m": 2}}}), namespace)
    assert patched["spec"] == {"x": [1], "z": {"m": 2}}


async def test_patch_of_a_missing_object_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=r'configmaps "missing" not found'):
        await client.patch(CONFIG_MAP, "missing", MergePatch({}), namespace)


async def test_resource_version_in_a_patch_is_a_precondition(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    version = created["metadata"]["resourceVersion"]
    patch = MergePatch({"metadata": {"resourceVersion": version}, "data": {"k": "1"}})
    assert (await client.patch(CONFIG_MAP, "a", patch, namespace))["data"] == {"k": "1"}
    with pytest.raises(Conflict) as refused:
        await client.patch(CONFIG_MAP, "a", patch, namespace)
    assert refused.value.message == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_uid_in_a_patch_is_a_precondition(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    mine = MergePatch({"metadata": {"uid": created["metadata"]["uid"]}, "data": {"k": "1"}})
    assert (await client.patch(CONFIG_MAP, "a", mine, namespace))["data"] == {"k": "1"}
    other = MergePatch({"metadata": {"uid": "00000000-0000-0000-0000-000000000001"}, "data": {"k": "2"}})
    with pytest.raises(Invalid, match=r"metadata.uid: Invalid value: .*: field is immutable"):
        await client.patch(CONFIG_MAP, "a", other, namespace)
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"k": "1"}


async def test_uid_in_a_patch_of_a_custom_object_is_a_precondition(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace)
    other = MergePatch({"metadata": {"uid": "00000000-0000-0000-0000-000000000001"}, "spec": {"n": 2}})
    with pytest.raises(Invalid, match=r"metadata.uid: Invalid value: .*: field is immutable"):
        await client.patch(gadgets, "a", other, namespace)


async def test_patch_cannot_change_the_name(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(ApiError) as refused:
        await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"name": "b"}}), namespace)
    assert (refused.value.code, refused.value.message) == (
        400,
        "the name of the object (b) does not match the name on the URL (a)",
    )


async def test_patch_cannot_change_the_kind(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(Invalid, match=r"patch: Invalid value"):
        await client.patch(CONFIG_MAP, "a", MergePatch({"kind": "Secret"}), namespace)


async def test_result_of_a_patch_is_validated(client: Client, namespace: str) -> None:
    await client.create(POD, pod("a"), namespace)
    with pytest.raises(Invalid, match=r"spec.containers: Required value"):
        await client.patch(POD, "a", MergePatch({"spec": {"containers": []}}), namespace)
    with pytest.raises(Invalid, match=r"metadata.labels: Invalid value"):
        await client.patch(POD, "a", MergePatch({"metadata": {"labels": {"bad key": "v"}}}), namespace)


async def test_most_fields_of_a_pod_are_immutable(client: Client, namespace: str) -> None:
    await client.create(POD, pod("a"), namespace)
    with pytest.raises(Invalid) as refused:
        await client.patch(POD, "a", MergePatch({"spec": {"hostNetwork": True}}), namespace)
    assert refused.value.message.startswith(
        'Pod "a" is invalid: spec: Forbidden: pod updates may not change fields other than '
        "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
        "`spec.tolerations` (only additions to existing tolerations),"
        "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
    )


@pytest.mark.parametrize("body", [[], "text", 1, True, [{"op": "add"}]])
async def test_patch_that_is_no_object_is_rejected(client: Client, namespace: str, body: Any) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(ApiError) as refused:
        await client.transport.request(Request("PATCH", CONFIG_MAP.path(namespace, "a"), {}, body, MERGE_PATCH))
    assert refused.value.code in (400, 422, 500)


async def test_patch_that_is_no_json_is_rejected(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(BadRequest):
        await client.transport.request(Request("PATCH", CONFIG_MAP.path(namespace, "a"), {}, b'{"data":', MERGE_PATCH))


async def test_patch_with_wrong_types_is_rejected(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(ApiError) as refused:
        await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": 1}}), namespace)
    assert refused.value.code in (400, 422)
