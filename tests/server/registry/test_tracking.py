from __future__ import annotations

from typing import Any

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.api.resource import SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.testing.objects import new, pod


def owned(obj: SharedObject) -> dict[tuple[str, str], Any]:
    """Fields by manager and subresource."""
    return {
        (entry["manager"], entry.get("subresource", "")): entry["fieldsV1"]
        for entry in obj["metadata"]["managedFields"]
    }


async def test_writer_of_a_field_owns_it(client: Client) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), "default", field_manager="one")
    assert owned(created) == {("one", ""): {"f:data": {".": {}, "f:k": {}}}}
    patch = MergePatch({"data": {"k": "2", "l": "2"}})
    patched = await client.patch(CONFIG_MAP, "a", patch, "default", field_manager="two")
    assert owned(patched) == {("one", ""): {"f:data": {}}, ("two", ""): {"f:data": {"f:k": {}, "f:l": {}}}}


async def test_fields_added_by_the_server_have_no_owner(client: Client) -> None:
    created = await client.create(POD, pod("p"), "default", field_manager="me")
    assert created["spec"]["tolerations"]  # added by admission
    fields = owned(created)[("me", "")]
    assert "f:tolerations" not in fields["f:spec"]
    assert set(fields) == {"f:spec"}


async def test_status_has_separate_owners(client: Client) -> None:
    await client.create(POD, pod("p"), "default", field_manager="me")
    patch = MergePatch({"status": {"message": "m"}})
    patched = await client.patch(POD, "p", patch, "default", subresource="status", field_manager="kubelet")
    assert owned(patched)[("kubelet", "status")] == {"f:status": {"f:message": {}}}


async def test_write_without_changes_owns_nothing(client: Client) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), "default", field_manager="one")
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "1"}}), "default", field_manager="two")
    assert patched == created
