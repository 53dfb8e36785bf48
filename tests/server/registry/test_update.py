from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import BadRequest, Conflict, Invalid, NotFound
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install

GADGET = custom_type("example.com", "Gadget")


async def put(client: Client, type: ResourceType, body: SharedObject, subresource: str = "", **query: str) -> Any:
    path = type.path("default", body["metadata"].get("name") or "a", subresource)
    return await client.transport.request(Request("PUT", path, query, body))


async def test_update_with_the_read_object_changes_nothing(server: ApiServer, client: Client) -> None:
    created = await client.create(POD, pod("p"), "default")
    before = server.store.revision
    assert await put(client, POD, created) == created
    assert server.store.revision == before


async def test_update_replaces_all_mutable_fields(client: Client) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"old": ""}), "default")
    updated = await put(client, CONFIG_MAP, new(CONFIG_MAP, "a", data={"new": ""}))
    assert updated["data"] == {"new": ""}
    kept = ("uid", "creationTimestamp")
    assert all(updated["metadata"][field] == created["metadata"][field] for field in kept)
    assert updated["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


async def test_update_must_name_its_object(client: Client) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    path = CONFIG_MAP.path("default", "a")
    for metadata, error in (
        ({}, BadRequest),
        ({"name": "b"}, BadRequest),
        ({"name": "a", "namespace": "other"}, BadRequest),
        ({"name": "a", "uid": "another"}, Conflict),
        ({"name": "a", "resourceVersion": "1"}, Conflict),
    ):
        body = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}
        with pytest.raises(error):
            await client.transport.request(Request("PUT", path, body=body))
    assert await client.get(CONFIG_MAP, "a", "default") == created
    with pytest.raises(NotFound):
        await put(client, CONFIG_MAP, new(CONFIG_MAP, "b"))


async def test_dry_run_stores_nothing(server: ApiServer, client: Client) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), "default")
    before = server.store.revision
    shown = await put(client, CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "2"}), dryRun="All")
    assert shown["data"] == {"k": "2"}
    assert shown["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert server.store.revision == before
    assert await client.get(CONFIG_MAP, "a", "default") == created


async def test_update_of_a_custom_resource_requires_a_version(client: Client) -> None:
    await install(client, definition(GADGET))
    await client.create(GADGET, new(GADGET, "g"), "default")
    with pytest.raises(Invalid, match=r"metadata.resourceVersion: Invalid value: 0: must be specified for an update"):
        await put(client, GADGET, new(GADGET, "g"))


async def test_status_and_main_resource_are_written_separately(client: Client) -> None:
    await install(client, definition(GADGET, subresources=("status",)))
    gadget = await client.create(GADGET, new(GADGET, "g", spec={"a": 1}), "default")
    both = {**gadget, "spec": {"a": 2}, "status": {"b": 2}}
    by_status = await put(client, GADGET, both, "status")
    assert (by_status["spec"], by_status["status"]) == ({"a": 1}, {"b": 2})
    assert by_status["metadata"]["generation"] == 1
    both = {**by_status, "spec": {"a": 3}, "status": {"b": 3}}
    by_object = await put(client, GADGET, both)
    assert (by_object["spec"], by_object["status"]) == ({"a": 3}, {"b": 2})
    assert by_object["metadata"]["generation"] == 2


async def test_labels_do_not_change_the_generation(client: Client) -> None:
    await install(client, definition(GADGET))
    await client.create(GADGET, new(GADGET, "g", spec={"a": 1}), "default")
    labelled = await client.patch(GADGET, "g", MergePatch({"metadata": {"labels": {"a": "b"}}}), "default")
    assert labelled["metadata"]["generation"] == 1


async def test_removing_the_last_finalizer_deletes_the_object(server: ApiServer, client: Client) -> None:
    held = new(CONFIG_MAP, "a", metadata={"finalizers": ["example.com/a", "example.com/b"]})
    await client.create(CONFIG_MAP, held, "default")
    await client.delete(CONFIG_MAP, "a", "default")
    one_left = MergePatch({"metadata": {"finalizers": ["example.com/b"]}})
    assert (await client.patch(CONFIG_MAP, "a", one_left, "default"))["metadata"]["deletionTimestamp"]
    last = await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"finalizers": None}}), "default")
    assert last["metadata"]["resourceVersion"] == str(server.store.revision)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "a", "default")


async def test_update_cannot_undo_a_deletion(client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": ["example.com/a"]}), "default")
    doomed = await client.delete(CONFIG_MAP, "a", "default")
    unmarked = MergePatch({"metadata": {"deletionTimestamp": None, "deletionGracePeriodSeconds": None}})
    after = await client.patch(CONFIG_MAP, "a", unmarked, "default")
    assert after["metadata"]["deletionTimestamp"] == doomed["metadata"]["deletionTimestamp"]
