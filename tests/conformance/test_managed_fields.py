"""metadata.managedFields: who wrote which field, as every kind of write records it."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, POD
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import ApplyPatch, Client, JsonPatch, MergePatch
from sandpool.kube.errors import Invalid
from sandpool.testing.objects import new, pod
from tests.support.api_access import Raw
from tests.support.extra_verbs import replace


def entries(object: SharedObject) -> list[dict[str, Any]]:
    """The entries without the times."""
    return [
        {key: value for key, value in entry.items() if key != "time"}
        for entry in object["metadata"].get("managedFields", [])
    ]


def entry(manager: str, operation: str, fields: dict[str, Any], **more: str) -> dict[str, Any]:
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
        **more,
    }


async def test_create_records_every_field(client: Client, namespace: str) -> None:
    wanted = new(CONFIG_MAP, "a", metadata={"labels": {"l": "1"}, "annotations": {"x": "1"}}, data={"k": "v"})
    created = await client.create(CONFIG_MAP, wanted, namespace, field_manager="creator")
    assert entries(created) == [
        entry(
            "creator",
            "Update",
            {
                "f:data": {".": {}, "f:k": {}},
                "f:metadata": {"f:annotations": {".": {}, "f:x": {}}, "f:labels": {".": {}, "f:l": {}}},
            },
        )
    ]
    assert created["metadata"]["managedFields"][0]["time"] == created["metadata"]["creationTimestamp"]


async def test_defaults_are_owned_by_the_creator(client: Client, namespace: str) -> None:
    created = await client.create(POD, pod("a"), namespace, field_manager="creator")
    [only] = entries(created)
    container = only["fieldsV1"]["f:spec"]["f:containers"]['k:{"name":"main"}']
    assert container == {
        ".": {},
        "f:image": {},
        "f:imagePullPolicy": {},
        "f:name": {},
        "f:resources": {},
        "f:terminationMessagePath": {},
        "f:terminationMessagePolicy": {},
    }
    assert {"f:dnsPolicy", "f:restartPolicy", "f:schedulerName"} <= only["fieldsV1"]["f:spec"].keys()
    assert "f:status" not in only["fieldsV1"]


async def test_patch_records_the_changed_fields(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1", "b": "1"}), namespace, field_manager="one")
    patch = MergePatch({"data": {"b": "2", "c": "2"}})
    patched = await client.patch(CONFIG_MAP, "a", patch, namespace, field_manager="two")
    assert entries(patched) == [
        entry("one", "Update", {"f:data": {".": {}, "f:a": {}}}),
        entry("two", "Update", {"f:data": {"f:b": {}, "f:c": {}}}),
    ]


async def test_setting_the_same_value_takes_no_ownership(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1"}), namespace, field_manager="one")
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"a": "1"}}), namespace, field_manager="two")
    assert patched == created


async def test_update_records_the_changed_fields(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1", "b": "1"}), namespace, field_manager="one")
    updated = await replace(
        client, CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "2", "b": "1"}), namespace, fieldManager="two"
    )
    assert entries(updated) == [
        entry("one", "Update", {"f:data": {".": {}, "f:b": {}}}),
        entry("two", "Update", {"f:data": {"f:a": {}}}),
    ]


async def test_removed_fields_have_no_owner(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"a": "1", "b": "1"}), namespace, field_manager="one")
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"b": None}}), namespace, field_manager="two")
    assert entries(patched) == [entry("one", "Update", {"f:data": {".": {}, "f:a": {}}})]


async def test_apply_records_the_applied_fields(client: Client, namespace: str) -> None:
    wanted = ApplyPatch(new(CONFIG_MAP, "a", metadata={"labels": {"l": "1"}}, data={"k": "v"}))
    applied = await client.patch(CONFIG_MAP, "a", wanted, namespace, field_manager="applier")
    assert entries(applied) == [
        entry("applier", "Apply", {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": {"f:l": {}}}})
    ]


async def test_apply_and_update_of_one_manager_have_two_entries(client: Client, namespace: str) -> None:
    wanted = ApplyPatch(new(CONFIG_MAP, "a", data={"k": "v"}))
    await client.patch(CONFIG_MAP, "a", wanted, namespace, field_manager="one")
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"l": "w"}}), namespace, field_manager="one")
    assert entries(patched) == [
        entry("one", "Apply", {"f:data": {"f:k": {}}}),
        entry("one", "Update", {"f:data": {"f:l": {}}}),
    ]


async def test_status_has_a_separate_entry(client: Client, namespace: str, gadgets: ResourceType) -> None:
    await client.create(gadgets, new(gadgets, "a", spec={"n": 1}), namespace, field_manager="one")
    patched = await client.patch(
        gadgets, "a", MergePatch({"status": {"n": 1}}), namespace, field_manager="one", subresource="status"
    )
    version = "conformance.example.com/v1"
    assert entries(patched) == [
        {**entry("one", "Update", {"f:spec": {".": {}, "f:n": {}}}), "apiVersion": version},
        {
            **entry("one", "Update", {"f:status": {".": {}, "f:n": {}}}),
            "apiVersion": version,
            "subresource": "status",
        },
    ]


async def test_identity_fields_have_no_owner(client: Client, namespace: str) -> None:
    """Names, uids, versions, times and the managedFields themselves are never owned."""
    created = await client.create(
        CONFIG_MAP, new(CONFIG_MAP, None, metadata={"generateName": "a-"}), namespace, field_manager="one"
    )
    assert entries(created) == [entry("one", "Update", {"f:metadata": {"f:generateName": {}}})]


async def test_field_manager_defaults_to_the_user_agent(raw: Raw, namespace: str) -> None:
    answer = await raw(
        "POST",
        CONFIG_MAP.path(namespace),
        body=b'{"metadata":{"name":"a"},"data":{"k":"v"}}',
        headers={"Content-Type": "application/json", "User-Agent": "my-tool/v1.2 (linux) something"},
    )
    assert [each["manager"] for each in answer.json()["metadata"]["managedFields"]] == ["my-tool"]


async def test_empty_managed_fields_clear_all_ownership(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), namespace, field_manager="one")
    patch = JsonPatch([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}])
    patched = await client.patch(CONFIG_MAP, "a", patch, namespace, field_manager="two")
    assert "managedFields" not in patched["metadata"]


async def test_managed_fields_can_be_written(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), namespace, field_manager="one")
    [mine] = created["metadata"]["managedFields"]
    patch = MergePatch({"metadata": {"managedFields": [{**mine, "manager": "renamed"}]}})
    patched = await client.patch(CONFIG_MAP, "a", patch, namespace, field_manager="two")
    assert [each["manager"] for each in entries(patched)] == ["renamed"]


@pytest.mark.parametrize("write", ["create", "merge patch", "JSON patch", "update"])
@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        ({"manager": "m" * 300}, "manager", "Too long: may not be more than 128 bytes"),
        (
            {"manager": "bad\x01name"},
            "manager",
            r'Invalid value: "bad\x01name": invalid character U+0001 (at position 3)',
        ),
        ({"subresource": "s" * 300}, "subresource", "Too long: may not be more than 256 bytes"),
    ],
    ids=["long manager", "unprintable manager", "long subresource"],
)
async def test_entry_with_a_wrong_name_is_refused(
    write: str, wrong: dict[str, str], field: str, message: str, client: Client, namespace: str
) -> None:
    # A field that the write does not set, so that its writer does not take it over.
    given = [{**entry("one", "Update", {"f:data": {"f:other": {}}}), "time": "2026-01-01T00:00:00Z", **wrong}]
    wanted = new(CONFIG_MAP, "a", data={"k": "v"})
    claimed = {**wanted, "metadata": {**wanted["metadata"], "managedFields": given}}
    if write != "create":
        await client.create(CONFIG_MAP, wanted, namespace, field_manager="one")
    with pytest.raises(Invalid) as refused:
        match write:
            case "create":
                await client.create(CONFIG_MAP, claimed, namespace)
            case "update":
                await replace(client, CONFIG_MAP, claimed, namespace)
            case "JSON patch":
                operation = {"op": "replace", "path": "/metadata/managedFields", "value": given}
                await client.patch(CONFIG_MAP, "a", JsonPatch([operation]), namespace)
            case _:
                await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"managedFields": given}}), namespace)
    # kube-apiserver names the same cause several times.
    causes = {(cause["field"], cause["message"]) for cause in refused.value.details["causes"]}
    assert causes == {(f"metadata.managedFields[0].{field}", message)}


async def test_managed_fields_of_a_status_write_are_ignored(client: Client, namespace: str) -> None:
    created = await client.create(POD, pod("a"), namespace, field_manager="one")
    given = [{**entry("m" * 300, "Update", {"f:spec": {}}), "time": "2026-01-01T00:00:00Z"}]
    patch = MergePatch({"metadata": {"managedFields": given}})
    patched = await client.patch(POD, "a", patch, namespace, field_manager="two", subresource="status")
    assert entries(patched) == entries(created)


async def test_keyed_lists_are_recorded_by_key(client: Client, namespace: str) -> None:
    containers = [{"name": "main", "image": "i", "env": [{"name": "A", "value": "1"}], "args": ["x"]}]
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    wanted = ApplyPatch(new(DEPLOYMENT, "a", spec=spec))
    applied = await client.patch(DEPLOYMENT, "a", wanted, namespace, field_manager="one")
    assert entries(applied) == [
        {
            **entry(
                "one",
                "Apply",
                {
                    "f:spec": {
                        "f:selector": {},
                        "f:template": {
                            "f:metadata": {"f:labels": {"f:app": {}}},
                            "f:spec": {
                                "f:containers": {
                                    'k:{"name":"main"}': {
                                        ".": {},
                                        "f:args": {},
                                        "f:env": {
                                            'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}},
                                        },
                                        "f:image": {},
                                        "f:name": {},
                                    }
                                }
                            },
                        },
                    }
                },
            ),
            "apiVersion": "apps/v1",
        }
    ]
