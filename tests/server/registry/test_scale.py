from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from sandpool.api.kinds import DEPLOYMENT
from sandpool.kube.client import Client, JsonPatch, MergePatch, Patch, StrategicPatch
from sandpool.kube.errors import ApiError, BadRequest, Conflict, Invalid, NotFound
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install

GADGET = custom_type("example.com", "Gadget")


@pytest_asyncio.fixture
async def gadget(client: Client) -> Any:
    await install(client, definition(GADGET, subresources=("status", "scale")))
    return await client.create(GADGET, new(GADGET, "g", spec={"replicas": 1, "a": 1}), "default")


async def put(client: Client, scale: Any) -> Any:
    return await client.transport.request(Request("PUT", GADGET.path("default", "g", "scale"), body=scale))


async def test_scale_is_read_from_its_paths(client: Client, gadget: Any) -> None:
    status = {"status": {"replicas": 3, "selector": "a=b"}}
    await client.patch(GADGET, "g", MergePatch(status), "default", subresource="status")
    scale = await client.get(GADGET, "g", "default", subresource="scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 3, "selector": "a=b"})
    assert scale["metadata"]["uid"] == gadget["metadata"]["uid"]


async def test_scale_of_missing_fields_is_zero(client: Client, gadget: Any) -> None:
    await client.create(GADGET, new(GADGET, "empty"), "default")
    scale = await client.get(GADGET, "empty", "default", subresource="scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 0}, {"replicas": 0})


@pytest.mark.parametrize(
    "patch",
    [MergePatch({"spec": {"replicas": 5}}), JsonPatch([{"op": "replace", "path": "/spec/replicas", "value": 5}])],
)
async def test_scale_changes_only_replicas(client: Client, gadget: Any, patch: Patch) -> None:
    scale = await client.patch(GADGET, "g", patch, "default", subresource="scale")
    assert scale["spec"] == {"replicas": 5}
    scaled = await client.get(GADGET, "g", "default")
    assert scaled["spec"] == {"replicas": 5, "a": 1}
    assert scaled["metadata"]["generation"] == 2


async def test_built_in_kind_is_scaled_by_a_strategic_patch(client: Client) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await client.create(DEPLOYMENT, new(DEPLOYMENT, "d", spec=spec), "default")
    patch = StrategicPatch({"spec": {"replicas": 2}})
    scale = await client.patch(DEPLOYMENT, "d", patch, "default", subresource="scale")
    assert (scale["spec"], scale["status"]["selector"]) == ({"replicas": 2}, "a=b")


async def test_dry_run_stores_nothing(server: ApiServer, client: Client, gadget: Any) -> None:
    before = server.store.revision
    patch = MergePatch({"spec": {"replicas": 5}})
    shown = await client.patch(GADGET, "g", patch, "default", subresource="scale", dry_run=True)
    assert shown["spec"] == {"replicas": 5}
    assert server.store.revision == before


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"spec": {"replicas": -1}}, Invalid),
        ({"spec": {"replicas": "5"}}, BadRequest),
        ({"spec": {"replicas": 1.5}}, BadRequest),
        ({"spec": {"replicas": 2**31}}, BadRequest),
        ({"spec": [5]}, BadRequest),
        ({"metadata": {"name": "other"}}, BadRequest),
        ({"metadata": {"name": "g", "resourceVersion": "1"}}, Conflict),
        ({"kind": "Gadget"}, BadRequest),
    ],
)
async def test_invalid_scale_is_rejected(
    server: ApiServer, client: Client, gadget: Any, changes: dict[str, Any], error: type[ApiError]
) -> None:
    scale = await client.get(GADGET, "g", "default", subresource="scale")
    before = server.store.revision
    with pytest.raises(error):
        await put(client, {**scale, **changes})
    assert server.store.revision == before


async def test_scale_of_a_missing_object_is_not_found(client: Client, gadget: Any) -> None:
    with pytest.raises(NotFound):
        await client.get(GADGET, "other", "default", subresource="scale")
