from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE
from sandpool.kube.client import Client
from sandpool.kube.errors import Conflict, NotFound
from sandpool.server.api_server import ApiServer
from sandpool.server.controllers.garbage_collector import OwnedObject
from sandpool.server.controllers.owner_graph import OwnerKind, Ref
from sandpool.testing.objects import new
from tests.support.api_objects import custom_type, definition, owner_reference
from tests.support.custom_kinds import install

A = Ref("configmaps", "default", "a")


async def test_controllers_write_through_the_registry(server: ApiServer, client: Client) -> None:
    objects = server.objects
    await objects.create(A, new(CONFIG_MAP, "a", data={"k": ""}))
    await objects.patch(A, {"data": {"k": "v"}})
    stored = await client.get(CONFIG_MAP, "a", "default")
    assert stored["data"] == {"k": "v"}
    assert stored == objects.get(A)
    assert {entry["manager"] for entry in stored["metadata"]["managedFields"]} == {"sandpool-server"}
    with pytest.raises(Conflict):
        await objects.delete(A, uid="other")
    with pytest.raises(Conflict):
        await objects.patch(A, {"metadata": {"resourceVersion": "1"}})
    await objects.delete(A, uid=stored["metadata"]["uid"])
    assert objects.get(A) is None
    with pytest.raises(NotFound):
        await objects.delete(A, uid=stored["metadata"]["uid"])


async def test_unserved_kind_cannot_be_written(server: ApiServer) -> None:
    with pytest.raises(NotFound):
        await server.objects.create(Ref("nothings.example.com", "default", "a"), {"metadata": {"name": "a"}})


async def test_traces_have_owners_and_finalizers(server: ApiServer, client: Client) -> None:
    owner = await client.create(CONFIG_MAP, new(CONFIG_MAP, "owner"), "default")
    metadata = {"ownerReferences": [owner_reference(owner)], "finalizers": ["example.com/hold"]}
    owned = await client.create(CONFIG_MAP, new(CONFIG_MAP, "owned", metadata=metadata), "default")
    owned_objects = {
        trace.ref.name: trace for trace in server.objects.owned_objects() if trace.ref.resource == "configmaps"
    }
    uid = owner["metadata"]["uid"]
    assert owned_objects["owner"] == OwnedObject(Ref("configmaps", "default", "owner"), uid, (), False)
    assert owned_objects["owned"] == OwnedObject(
        Ref("configmaps", "default", "owned"), owned["metadata"]["uid"], (uid,), True
    )


async def test_kinds_are_found_by_group_in_any_version(server: ApiServer, client: Client) -> None:
    assert server.objects.kind("v1", "ConfigMap") == OwnerKind("configmaps", True)
    assert server.objects.kind("apps/v7", "Deployment") == OwnerKind("deployments.apps", True)
    assert server.objects.kind("v1", "Widget") is None
    widget = custom_type("example.com", namespaced=False)
    await install(client, definition(widget))
    assert server.objects.kind("example.com/v1", "Widget") == OwnerKind("widgets.example.com", False)


async def test_contents_of_a_namespace_include_all_kinds(server: ApiServer, client: Client) -> None:
    await client.create(NAMESPACE, new(NAMESPACE, "n"))
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "n")
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "b"), "default")
    found = {ref.name for ref, _ in server.objects.contents("n") if ref.resource == "configmaps"}
    assert found == {"a"}
    assert "n" in server.objects.namespaces()
    assert {ref.name for ref, _ in server.objects.instances("configmaps")} == {"a", "b"}
