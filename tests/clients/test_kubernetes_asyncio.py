"""kubernetes_asyncio: the same client for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import kubernetes_asyncio
import pytest

from sandpool.bench.server_process import ServerProcess
from tests.support.control_plane import ControlPlane

client: Any = kubernetes_asyncio.client  # its type hints want models where it takes plain dictionaries just as well
config: Any = kubernetes_asyncio.config
watch: Any = kubernetes_asyncio.watch
Server = ServerProcess | ControlPlane


@pytest.fixture
async def core(server: Server, namespace: str) -> AsyncIterator[Any]:
    """The core API, with a fresh namespace."""
    configuration = client.Configuration()
    await config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        core = client.CoreV1Api(api)
        await core.create_namespace({"metadata": {"name": namespace}})
        yield core


async def test_objects_are_created_changed_and_deleted(core: Any, namespace: str) -> None:
    created = await core.create_namespaced_config_map(
        namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"k": "1"})
    )
    assert created.metadata.uid
    await core.patch_namespaced_config_map("a", namespace, {"data": {"k": "2"}})
    assert (await core.read_namespaced_config_map("a", namespace)).data == {"k": "2"}
    await core.delete_namespaced_config_map("a", namespace)
    with pytest.raises(client.ApiException) as refused:
        await core.read_namespaced_config_map("a", namespace)
    assert refused.value.status == 404


async def test_watch_yields_events(core: Any, namespace: str) -> None:
    start = (await core.list_namespaced_secret(namespace)).metadata.resource_version

    async def write() -> None:
        await core.create_namespaced_secret(namespace, {"metadata": {"name": "a"}})
        await core.delete_namespaced_secret("a", namespace)

    writing = asyncio.create_task(write())
    seen = []
    async with watch.Watch() as stream:
        async for event in stream.stream(
            core.list_namespaced_secret, namespace, resource_version=start, timeout_seconds=30
        ):
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                break
    await writing
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


async def test_concurrent_requests_succeed(core: Any, namespace: str) -> None:
    await asyncio.gather(
        *(core.create_namespaced_secret(namespace, {"metadata": {"name": f"s{number}"}}) for number in range(20))
    )
    assert len((await core.list_namespaced_secret(namespace)).items) == 20


async def test_custom_objects_are_created_and_listed(core: Any, namespace: str) -> None:
    custom = client.CustomObjectsApi(core.api_client)
    extensions = client.ApiextensionsV1Api(core.api_client)
    group = f"{namespace}.example.com"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "kind": "Thing"}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    await extensions.create_custom_resource_definition({"metadata": {"name": f"things.{group}"}, "spec": spec})
    body = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"n": 1}}
    async with asyncio.timeout(30):
        while True:
            try:
                created = await custom.create_namespaced_custom_object(group, "v1", namespace, "things", body)
                break
            except client.ApiException as error:  # until the kind is served
                assert error.status in (404, 429)
    assert created["spec"] == {"n": 1}
    await extensions.delete_custom_resource_definition(f"things.{group}")
