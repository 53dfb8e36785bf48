"""Server-side apply: creating, owning, conflicting, forcing, giving up."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, SERVICE
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import ApplyPatch, Client, MergePatch
from sandpool.kube.errors import Conflict, Invalid, NotFound
from sandpool.kube.transport import APPLY_PATCH
from sandpool.testing.objects import new
from tests.support.api_access import Raw


async def apply(
    client: Client, namespace: str, data: dict[str, str] | None, manager: str = "one", *, force: bool = False
) -> SharedObject:
    wanted = new(CONFIG_MAP, "a") if data is None else new(CONFIG_MAP, "a", data=data)
    return await client.patch(CONFIG_MAP, "a", ApplyPatch(wanted), namespace, field_manager=manager, force=force)


def owners(object: SharedObject) -> dict[str, Any]:
    """Manager to owned fields, of objects on which each manager has one entry."""
    return {each["manager"]: each["fieldsV1"] for each in object["metadata"].get("managedFields", [])}


async def test_apply_creates_a_missing_object_with_201(raw: Raw, namespace: str) -> None:
    answer = await raw(
        "PATCH",
        CONFIG_MAP.path(namespace, "a") + "?fieldManager=one",
        body=b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n",
        headers={"Content-Type": APPLY_PATCH},
    )
    assert answer.status == 201
    assert answer.json()["data"] == {"k": "v"}
    assert answer.json()["metadata"]["uid"]


async def test_apply_of_an_existing_object_answers_200(raw: Raw, client: Client, namespace: str) -> None:
    await apply(client, namespace, {"k": "v"})
    answer = await raw(
        "PATCH",
        CONFIG_MAP.path(namespace, "a") + "?fieldManager=one",
        body=b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"w"}}',
        headers={"Content-Type": APPLY_PATCH},
    )
    assert answer.status == 200
    assert answer.json()["data"] == {"k": "w"}


async def test_apply_of_the_same_fields_changes_nothing(client: Client, namespace: str) -> None:
    first = await apply(client, namespace, {"k": "v"})
    assert await apply(client, namespace, {"k": "v"}) == first


async def test_field_no_longer_applied_is_removed(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"a": "1", "b": "2"})
    assert (await apply(client, namespace, {"a": "1"}))["data"] == {"a": "1"}
    assert "data" not in await apply(client, namespace, None)


async def test_apply_keeps_fields_of_other_managers(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"a": "1"})
    await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"b": "2"}}), namespace)
    assert (await apply(client, namespace, {"a": "3"}))["data"] == {"a": "3", "b": "2"}
    assert (await apply(client, namespace, None))["data"] == {"b": "2"}


async def test_apply_of_another_value_conflicts(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"a": "1"})
    with pytest.raises(Conflict) as refused:
        await apply(client, namespace, {"a": "2"}, "two")
    assert refused.value.message == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert refused.value.details == {
        "causes": [{"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}]
    }
    assert (await client.get(CONFIG_MAP, "a", namespace))["data"] == {"a": "1"}


async def test_several_conflicts_are_listed(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"a": "1"})
    await apply(client, namespace, {"b": "1"}, "two")
    with pytest.raises(Conflict) as refused:
        await apply(client, namespace, {"a": "2", "b": "2"}, "three")
    lines = refused.value.message.removeprefix("Apply failed with 2 conflicts: ").splitlines()
    assert sorted(lines) == ["- .data.a", "- .data.b", 'conflicts with "one":', 'conflicts with "two":']
    assert {(cause["message"], cause["field"]) for cause in refused.value.details["causes"]} == {
        ('conflict with "one"', ".data.a"),
        ('conflict with "two"', ".data.b"),
    }


async def test_apply_conflicts_with_an_update(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1"}), namespace, field_manager="writer")
    with pytest.raises(Conflict, match=r'conflict with "writer" using v1: .data.a'):
        await apply(client, namespace, {"a": "2"})


async def test_applied_field_with_the_same_value_is_shared(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"a": "1"})
    shared = await apply(client, namespace, {"a": "1"}, "two")
    assert owners(shared) == {"one": {"f:data": {"f:a": {}}}, "two": {"f:data": {"f:a": {}}}}
    left = await apply(client, namespace, None)
    assert left["data"] == {"a": "1"}
    assert owners(left) == {"two": {"f:data": {"f:a": {}}}}


async def test_force_takes_ownership_of_the_field(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"a": "1", "b": "1"})
    forced = await apply(client, namespace, {"a": "2"}, "two", force=True)
    assert forced["data"] == {"a": "2", "b": "1"}
    assert owners(forced) == {"one": {"f:data": {"f:b": {}}}, "two": {"f:data": {"f:a": {}}}}


async def test_update_takes_ownership_of_the_field(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"a": "1", "b": "1"})
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"a": "2"}}), namespace, field_manager="writer")
    assert owners(patched) == {"one": {"f:data": {"f:b": {}}}, "writer": {"f:data": {"f:a": {}}}}


async def test_applied_lists_merge_by_key(client: Client, namespace: str) -> None:
    def ports(*numbers: int) -> ApplyPatch:
        return ApplyPatch(
            new(SERVICE, "a", spec={"ports": [{"name": f"p{n}", "port": n, "protocol": "TCP"} for n in numbers]})
        )

    await client.patch(SERVICE, "a", ports(80), namespace, field_manager="one")
    merged = await client.patch(SERVICE, "a", ports(81), namespace, field_manager="two")
    assert [port["port"] for port in merged["spec"]["ports"]] == [80, 81]
    key = 'k:{"port":81,"protocol":"TCP"}'
    assert owners(merged)["two"] == {
        "f:spec": {"f:ports": {key: {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}}}}
    }
    left = await client.patch(SERVICE, "a", ApplyPatch(new(SERVICE, "a")), namespace, field_manager="two")
    assert [port["port"] for port in left["spec"]["ports"]] == [80]


async def test_list_key_is_completed_by_its_default(client: Client, namespace: str) -> None:
    for number in (80, 81):
        patch = ApplyPatch(new(SERVICE, "a", spec={"ports": [{"name": f"p{number}", "port": number}]}))
        applied = await client.patch(SERVICE, "a", patch, namespace, field_manager=f"m{number}")
    assert [port["port"] for port in applied["spec"]["ports"]] == [80, 81]


async def test_applied_sets_merge_by_value(client: Client, namespace: str) -> None:
    for name in ("one", "two"):
        wanted = new(CONFIG_MAP, "a", metadata={"finalizers": [f"example.com/{name}"]})
        applied = await client.patch(CONFIG_MAP, "a", ApplyPatch(wanted), namespace, field_manager=name)
    assert applied["metadata"]["finalizers"] == ["example.com/one", "example.com/two"]
    assert owners(applied)["two"] == {"f:metadata": {"f:finalizers": {'v:"example.com/two"': {}}}}
    for name in ("one", "two"):
        left = await client.patch(CONFIG_MAP, "a", ApplyPatch(new(CONFIG_MAP, "a")), namespace, field_manager=name)
    assert "finalizers" not in left["metadata"]


async def test_atomic_lists_have_one_owner(client: Client, namespace: str, widgets: ResourceType) -> None:
    """A schema without list types makes every list one value."""
    wanted = ApplyPatch(new(widgets, "a", spec={"list": [1, 2]}))
    await client.patch(widgets, "a", wanted, namespace, field_manager="one")
    other = ApplyPatch(new(widgets, "a", spec={"list": [3]}))
    with pytest.raises(Conflict, match=r'conflict with "one": .spec.list'):
        await client.patch(widgets, "a", other, namespace, field_manager="two")
    forced = await client.patch(widgets, "a", other, namespace, field_manager="two", force=True)
    assert forced["spec"] == {"list": [3]}


async def test_status_is_applied_through_its_subresource(client: Client, namespace: str, gadgets: ResourceType) -> None:
    wanted = new(gadgets, "a", spec={"n": 1}, status={"ignored": 1})
    created = await client.patch(gadgets, "a", ApplyPatch(wanted), namespace, field_manager="one")
    assert "status" not in created
    status = ApplyPatch(new(gadgets, "a", spec={"n": 2}, status={"n": 3}))
    applied = await client.patch(gadgets, "a", status, namespace, field_manager="one", subresource="status")
    assert (applied["spec"], applied["status"]) == ({"n": 1}, {"n": 3})
    entries = {(each["manager"], each.get("subresource")): each["fieldsV1"] for each in managed(applied)}
    assert entries == {
        ("one", None): {"f:spec": {"f:n": {}}},
        ("one", "status"): {"f:status": {"f:n": {}}},
    }


def managed(object: SharedObject) -> list[Object]:
    fields: list[Object] = object["metadata"]["managedFields"]
    return fields


async def test_apply_of_the_status_of_a_missing_object_is_not_found(
    client: Client, namespace: str, gadgets: ResourceType
) -> None:
    """A subresource cannot create its object."""
    with pytest.raises(NotFound, match=r'gadgets.conformance.example.com "missing" not found'):
        await client.patch(
            gadgets,
            "missing",
            ApplyPatch(new(gadgets, "missing", status={"n": 1})),
            namespace,
            field_manager="one",
            subresource="status",
        )


async def test_scaling_moves_the_ownership_of_replicas(client: Client, namespace: str) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    wanted = ApplyPatch(new(DEPLOYMENT, "a", spec=spec))
    await client.patch(DEPLOYMENT, "a", wanted, namespace, field_manager="one")
    await client.patch(
        DEPLOYMENT,
        "a",
        MergePatch({"spec": {"replicas": 5}}),
        namespace,
        subresource="scale",
        field_manager="scaler",
    )
    scaled = await client.get(DEPLOYMENT, "a", namespace)
    fields = owners(scaled)
    assert fields["scaler"] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in fields["one"]["f:spec"]
    with pytest.raises(Conflict, match=r'conflict with "scaler" .*: \.spec\.replicas'):
        await client.patch(DEPLOYMENT, "a", wanted, namespace, field_manager="one")


async def test_dry_run_of_apply_persists_nothing(client: Client, namespace: str) -> None:
    wanted = ApplyPatch(new(CONFIG_MAP, "a", data={"k": "v"}))
    applied = await client.patch(CONFIG_MAP, "a", wanted, namespace, field_manager="one", dry_run=True)
    assert applied["data"] == {"k": "v"}
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "a", namespace)


async def test_resource_version_of_an_applied_object_is_a_precondition(client: Client, namespace: str) -> None:
    await apply(client, namespace, {"k": "v"})
    wanted = ApplyPatch(new(CONFIG_MAP, "a", metadata={"resourceVersion": "1"}, data={"k": "w"}))
    with pytest.raises(Conflict, match=r"the object has been modified"):
        await client.patch(CONFIG_MAP, "a", wanted, namespace, field_manager="one")


async def test_apply_with_a_uid_does_not_create(client: Client, namespace: str) -> None:
    wanted = ApplyPatch(new(CONFIG_MAP, "a", metadata={"uid": "00000000-0000-0000-0000-000000000001"}))
    with pytest.raises(Conflict, match=r"uid mismatch: the provided object specified uid"):
        await client.patch(CONFIG_MAP, "a", wanted, namespace, field_manager="one")


# What is refused


async def send(raw: Raw, namespace: str, body: bytes, query: str = "?fieldManager=one") -> tuple[int, str]:
    answer = await raw(
        "PATCH", CONFIG_MAP.path(namespace, "a") + query, body=body, headers={"Content-Type": APPLY_PATCH}
    )
    return answer.status, answer.json().get("message", "")


VALID = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}'


async def test_field_manager_is_required_for_apply(raw: Raw, namespace: str) -> None:
    assert await send(raw, namespace, VALID, "") == (
        422,
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
    )


async def test_field_manager_has_at_most_128_bytes(raw: Raw, namespace: str) -> None:
    assert await send(raw, namespace, VALID, "?fieldManager=" + "x" * 129) == (
        422,
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Too long: may not be more than 128 bytes',
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"kind":"ConfigMap","metadata":{"name":"a"}}', "invalid object type: /, Kind=ConfigMap"),
        (b'{"apiVersion":"v1","metadata":{"name":"a"}}', "invalid object type: /v1, Kind="),
        (
            b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}',
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":[]}}',
            "metadata.managedFields must be nil",
        ),
    ],
)
async def test_object_that_does_not_fit_the_path_cannot_be_applied(
    raw: Raw, namespace: str, body: bytes, message: str
) -> None:
    assert await send(raw, namespace, body) == (400, message)


async def test_body_that_is_no_yaml_is_rejected(raw: Raw, namespace: str) -> None:
    code, message = await send(raw, namespace, b"data: [")
    assert code == 400
    assert message.startswith("error decoding YAML: ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (b'"unknown":1', ".unknown: field not declared in schema"),
        (b'"data":{"k":1}', ".data.k: expected string, got "),
    ],
)
async def test_unknown_fields_of_an_applied_object_are_rejected(
    raw: Raw, client: Client, namespace: str, fields: bytes, message: str
) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    code, got = await send(raw, namespace, VALID[:-1] + b"," + fields + b"}")
    assert code == 500
    assert re.match(r"failed to create typed patch object \(.*/a; /v1, Kind=ConfigMap\): ", got)
    assert message in got


async def test_force_is_rejected_for_other_patches(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    with pytest.raises(Invalid) as refused:
        await client.patch(CONFIG_MAP, "a", MergePatch({"data": {}}), namespace, force=True)
    assert refused.value.message == (
        'PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch'
    )


async def test_apply_in_a_missing_namespace_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=f'namespaces "{namespace}-missing" not found'):
        await apply(client, namespace + "-missing", {"k": "v"})
