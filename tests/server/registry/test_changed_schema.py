"""Objects that were stored before their schema was what it is now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest_asyncio

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new
from sandpool.testing.waiting import take, until
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install

WIDGET = custom_type("example.com")


def schema(**properties: Any) -> Object:
    spec = {"type": "object", "properties": properties}
    return {"type": "object", "properties": {"spec": spec}}


TEXT: Object = {"type": "string"}
OLD = schema(a=TEXT)
NEW = schema(a=TEXT, b={"type": "string", "default": "filled"})


async def change_schema(server: ApiServer, new_schema: Object) -> None:
    versions = definition(WIDGET, new_schema)["spec"]["versions"]
    patch = MergePatch({"spec": {"versions": versions}})
    await server.client().patch(CUSTOM_RESOURCE_DEFINITION, WIDGET.group_resource, patch)

    async def served() -> bool:
        resource = server.resources.get("example.com", "v1", "widgets")
        return resource is not None and set(resource.shape.properties["spec"].properties) == set(
            new_schema["properties"]["spec"]["properties"]
        )

    await until(served)


@pytest_asyncio.fixture
async def stored(client: Client) -> SharedObject:
    await install(client, definition(WIDGET, OLD))
    return await client.create(WIDGET, new(WIDGET, "w", spec={"a": "1"}), "default")


async def test_new_default_applies_to_stored_objects(server: ApiServer, client: Client, stored: Object) -> None:
    revision = server.store.revision
    await change_schema(server, NEW)
    filled = {"a": "1", "b": "filled"}
    got = await client.get(WIDGET, "w", "default")
    assert got["spec"] == filled
    assert got["metadata"] == stored["metadata"], "reading is not writing"
    [item] = (await client.list(WIDGET, "default"))["items"]
    assert item["spec"] == filled
    [added] = await take(client.watch(WIDGET, "default"), 1)
    assert added.object["spec"] == filled
    patched = await client.patch(WIDGET, "w", MergePatch({"metadata": {"labels": {"a": "b"}}}), "default")
    assert patched["spec"] == filled
    [resumed] = await take(client.watch(WIDGET, "default", resource_version=str(revision)), 1)
    assert resumed.object["spec"] == filled


async def test_new_default_applies_after_a_restart(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    await install(server.client(), definition(WIDGET, OLD))
    await server.client().create(WIDGET, new(WIDGET, "w", spec={"a": "1"}), "default")
    await change_schema(server, NEW)
    await server.stop()
    await server.start()
    assert (await server.client().get(WIDGET, "w", "default"))["spec"] == {"a": "1", "b": "filled"}
    await server.stop()


async def test_current_default_is_shown_until_the_object_is_written(
    server: ApiServer, client: Client, stored: Object
) -> None:
    await change_schema(server, NEW)
    assert (await client.get(WIDGET, "w", "default"))["spec"]["b"] == "filled"
    await client.patch(WIDGET, "w", MergePatch({"spec": {"a": "2"}}), "default")
    await change_schema(server, schema(a=TEXT, b={"type": "string", "default": "another"}))
    assert (await client.get(WIDGET, "w", "default"))["spec"] == {"a": "2", "b": "filled"}


async def test_every_version_is_read_with_its_own_schema(client: Client) -> None:
    """Gets, lists, watches and responses to writes show the same."""
    crd = definition(WIDGET, schema(a=TEXT, only_old=TEXT))
    second = {**crd["spec"]["versions"][0], "name": "v2", "storage": False}
    second["schema"] = {"openAPIV3Schema": NEW}
    crd["spec"]["versions"].append(second)
    await install(client, crd)
    later = custom_type("example.com", version="v2")
    created = await client.create(WIDGET, new(WIDGET, "w", spec={"a": "1", "only_old": "x"}), "default")
    shown = {"a": "1", "b": "filled"}
    assert (await client.get(later, "w", "default"))["spec"] == shown
    [item] = (await client.list(later, "default"))["items"]
    assert item["spec"] == shown
    [added] = await take(client.watch(later, "default"), 1)
    assert added.object["spec"] == shown
    version = created["metadata"]["resourceVersion"]
    labelled = MergePatch({"metadata": {"labels": {"a": "b"}}})
    await client.patch(WIDGET, "w", labelled, "default")
    [modified] = await take(client.watch(later, "default", resource_version=version), 1)
    assert (modified.object["apiVersion"], modified.object["spec"]) == ("example.com/v2", shown)
