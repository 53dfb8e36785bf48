from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from sandpool.api.kinds import (
    CONFIG_MAP,
    DAEMON_SET,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    REPLICA_SET,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    STATEFUL_SET,
)
from sandpool.api.resource import Key, ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, ApiError, BadRequest, Invalid, NotFound
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.groups import MASTERS
from sandpool.server.request.messages import ServerRequest, User
from sandpool.testing.objects import new, pod
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install
from tests.support.fixed_random import FixedRandom

MASTER = User("admin", (MASTERS,))

GADGET = custom_type("example.com", "Gadget")


async def test_dry_run_stores_nothing_and_returns_the_object(server: ApiServer, client: Client) -> None:
    before = server.store.revision
    shown = await client.create(POD, pod("p"), "default", dry_run=True)
    assert shown["metadata"]["uid"]
    assert shown["spec"]["restartPolicy"] == "Always"
    assert "resourceVersion" not in shown["metadata"]
    assert server.store.revision == before
    with pytest.raises(NotFound):
        await client.get(POD, "p", "default")
    await client.create(POD, pod("p"), "default")
    with pytest.raises(AlreadyExists):
        await client.create(POD, pod("p"), "default", dry_run=True)


async def test_system_fields_of_the_body_are_dropped(client: Client) -> None:
    brought = {
        "uid": "mine",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 5,
        "generation": 7,
        "selfLink": "/x",
    }
    created = (await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata=brought), "default"))["metadata"]
    assert created["uid"] != "mine"
    assert created["creationTimestamp"] > "2026"
    assert not {"deletionTimestamp", "deletionGracePeriodSeconds", "generation"} & set(created)


async def test_resource_version_of_the_body_is_rejected(client: Client) -> None:
    with pytest.raises(ApiError, match="resourceVersion should not be set") as refused:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"resourceVersion": "1"}), "default")
    assert refused.value.code == 500  # as kube-apiserver has it


async def test_generated_names_are_unused(tmp_path: Path) -> None:
    server = ApiServer(tmp_path, rng=FixedRandom())
    await server.start()
    client = server.client()
    body = new(CONFIG_MAP, None, metadata={"generateName": "x-"})
    first = await client.create(CONFIG_MAP, body, "default")
    assert first["metadata"]["name"].startswith("x-")
    with pytest.raises(AlreadyExists):  # it has tried, and says so instead of trying for ever
        await client.create(CONFIG_MAP, body, "default")
    await server.stop()


async def test_name_can_exist_in_two_namespaces(client: Client) -> None:
    await client.create(NAMESPACE, new(NAMESPACE, "other"))
    for namespace in ("default", "other"):
        created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "same"), namespace)
        assert created["metadata"]["namespace"] == namespace


async def test_namespace_of_the_url_is_used(client: Client) -> None:
    with pytest.raises(BadRequest, match="does not match the namespace sent on the request"):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"namespace": "other"}), "default")
    cluster_wide = await client.create(NAMESPACE, new(NAMESPACE, "n", metadata={"namespace": "x"}))
    assert "namespace" not in cluster_wide["metadata"]


async def test_missing_namespace_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "nowhere")


async def test_custom_resource_starts_without_status_and_with_a_generation(client: Client) -> None:
    await install(client, definition(GADGET, subresources=("status",)))
    created = await client.create(GADGET, new(GADGET, "g", spec={"a": 1}, status={"b": 2}), "default")
    assert "status" not in created
    assert created["metadata"]["generation"] == 1


async def test_stored_objects_begin_with_kind_and_version(server: ApiServer, client: Client) -> None:
    """Lists of built-in kinds cut kind and apiVersion off the bytes, so they must be where they are cut."""
    body = {"metadata": {"name": "a"}, "apiVersion": "v1", "data": {"k": "v"}, "kind": "ConfigMap"}
    await client.create(CONFIG_MAP, body, "default")
    entry = server.store.get("configmaps", Key("default", "a"))
    assert entry is not None
    assert entry.encoded.startswith(b'{"kind":"ConfigMap","apiVersion":"v1",')
    [item] = (await client.list(CONFIG_MAP, "default"))["items"]
    assert set(item) == {"metadata", "data"}


async def test_kind_and_version_can_only_be_omitted_together(client: Client) -> None:
    path = CONFIG_MAP.path("default")
    created = await client.transport.request(Request("POST", path, body={"metadata": {"name": "a"}}))
    assert (created["kind"], created["apiVersion"]) == ("ConfigMap", "v1")
    for body in ({"kind": "ConfigMap"}, {"apiVersion": "v1"}):
        with pytest.raises(BadRequest, match="is missing in"):
            await client.transport.request(Request("POST", path, body={**body, "metadata": {"name": "b"}}))


async def test_invalid_object_is_not_created(server: ApiServer, client: Client) -> None:
    before = server.store.revision
    with pytest.raises(Invalid):
        await client.create(POD, pod("p", spec={"containers": []}), "default")
    assert server.store.revision == before


@pytest.mark.parametrize("kind", [DEPLOYMENT, REPLICA_SET, DAEMON_SET, STATEFUL_SET], ids=lambda kind: kind.kind)
async def test_workload_without_a_controller_is_created_with_a_warning(server: ApiServer, kind: ResourceType) -> None:
    pods = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    workload = new(kind, "web", spec={"selector": {"matchLabels": {"a": "b"}}, "template": pods})
    for body, expected in ((workload, 1), (pod("p"), 0)):
        type = kind if expected else POD
        request = ServerRequest(
            "POST", type.path("default"), MASTER, body=orjson.dumps(body), headers={"content-type": "application/json"}
        )
        response = await server.handler.handle(request)
        assert response.status == 201
        warnings = [value for name, value in response.headers if name == "Warning"]
        assert len(warnings) == expected
        assert all("runs no controller for it: no pods will be created" in each for each in warnings)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/namespaces/default/{0}"),
        ("GET", "/namespaces/default/{0}/a"),
        ("POST", "/namespaces/default/{0}"),
    ],
)
@pytest.mark.parametrize("type", [SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL], ids=str)
async def test_v1alpha1_client_is_told_the_served_version(
    server: ApiServer, type: ResourceType, method: str, path: str
) -> None:
    asked = f"/apis/{type.group}/v1alpha1{path.format(type.plural)}"
    request = ServerRequest(method, asked, MASTER, body=b"{}", headers={"content-type": "application/json"})
    expected = f"{type.group}/v1alpha1 is no longer served; use {type.group}/v1beta1"
    with pytest.raises(NotFound, match=re.escape(expected)):
        await server.handler.handle(request)
