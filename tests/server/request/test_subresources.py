from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import NAMESPACE, POD, SERVICE_ACCOUNT
from sandpool.api.resource import Key
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, BadRequest, Conflict, Invalid, MethodNotAllowed, NotFound
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import until

BINDING: dict[str, Any] = {"kind": "Binding", "apiVersion": "v1", "target": {"kind": "Node", "name": "n"}}
TOKEN_REQUEST: dict[str, Any] = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}


async def post(client: Client, path: str, body: Any, **query: str) -> Any:
    return await client.transport.request(Request("POST", path, query, body))


async def bind(client: Client, body: Any, **query: str) -> Any:
    return await post(client, POD.path("default", "p", "binding"), body, **query)


async def evict(client: Client, body: Any, **query: str) -> Any:
    return await post(client, POD.path("default", "p", "eviction"), body, **query)


async def test_binding_assigns_a_pod_once(client: Client) -> None:
    await client.create(POD, pod("p"), "default")
    answer = await bind(client, {**BINDING, "metadata": {"name": "p", "labels": {"a": "b"}}})
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    bound = await client.get(POD, "p", "default")
    assert bound["spec"]["nodeName"] == "n"
    assert bound["metadata"]["labels"] == {"a": "b"}
    assert [it["type"] for it in bound["status"]["conditions"] if it["status"] == "True"] == ["PodScheduled"]
    with pytest.raises(Conflict, match="already assigned to node"):
        await bind(client, BINDING)


async def test_dry_run_binds_nothing(server: ApiServer, client: Client) -> None:
    await client.create(POD, pod("p"), "default")
    before = server.store.revision
    await bind(client, BINDING, dryRun="All")
    assert server.store.revision == before


@pytest.mark.parametrize(
    "body, error",
    [
        ({**BINDING, "target": {}}, Invalid),
        ({**BINDING, "target": {"kind": "Pod", "name": "x"}}, Invalid),
        ({**BINDING, "target": "n"}, BadRequest),
        ({**BINDING, "metadata": []}, BadRequest),
        ({**BINDING, "metadata": {"name": "other"}}, BadRequest),
        ({**BINDING, "kind": "Pod"}, BadRequest),
    ],
)
async def test_invalid_binding_is_rejected(client: Client, body: Any, error: type[ApiError]) -> None:
    await client.create(POD, pod("p"), "default")
    with pytest.raises(error):
        await bind(client, body)


async def test_eviction_deletes_with_options(client: Client) -> None:
    created = await client.create(POD, pod("p", spec={"nodeName": "n"}), "default")
    eviction = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}}
    with pytest.raises(Conflict):
        await evict(client, {**eviction, "deleteOptions": {"preconditions": {"uid": "other"}}})
    options = {"gracePeriodSeconds": 7, "preconditions": {"uid": created["metadata"]["uid"]}}
    await evict(client, {**eviction, "deleteOptions": options})
    assert (await client.get(POD, "p", "default"))["metadata"]["deletionGracePeriodSeconds"] == 7


@pytest.mark.parametrize("options", ["x", {"preconditions": []}, {"dryRun": "All"}, {"gracePeriodSeconds": "1"}])
async def test_invalid_eviction_is_rejected(client: Client, options: Any) -> None:
    await client.create(POD, pod("p"), "default")
    with pytest.raises(BadRequest):
        await evict(client, {"kind": "Eviction", "apiVersion": "policy/v1", "deleteOptions": options})
    await client.get(POD, "p", "default")


@pytest.mark.parametrize("how", ["options", "query"])
async def test_dry_run_evicts_nothing(server: ApiServer, client: Client, how: str) -> None:
    await client.create(POD, pod("p"), "default")
    before = server.store.revision
    eviction: Any = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}}
    if how == "options":
        await evict(client, {**eviction, "deleteOptions": {"dryRun": ["All"]}})
    else:
        await evict(client, eviction, dryRun="All")
    assert server.store.revision == before


async def test_issued_service_account_token_authenticates(server: ApiServer, client: Client) -> None:
    await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, "robot"), "default")
    path = SERVICE_ACCOUNT.path("default", "robot", "token")
    answer = await post(client, path, TOKEN_REQUEST)
    review = {
        "kind": "TokenReview",
        "apiVersion": "authentication.k8s.io/v1",
        "spec": {"token": answer["status"]["token"]},
    }
    status = (await post(client, "/apis/authentication.k8s.io/v1/tokenreviews", review))["status"]
    assert status["user"]["username"] == "system:serviceaccount:default:robot"
    with pytest.raises(NotFound):
        await post(client, SERVICE_ACCOUNT.path("default", "missing", "token"), TOKEN_REQUEST)


@pytest.mark.parametrize(
    "spec",
    [[], {"expirationSeconds": "600"}, {"audiences": "a"}, {"boundObjectRef": []}, {"boundObjectRef": {"name": 1}}],
)
async def test_invalid_token_request_is_rejected(client: Client, spec: Any) -> None:
    await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, "robot"), "default")
    with pytest.raises(BadRequest):
        await post(client, SERVICE_ACCOUNT.path("default", "robot", "token"), {**TOKEN_REQUEST, "spec": spec})


async def test_only_finalize_removes_finalizers_of_a_namespace(server: ApiServer, client: Client) -> None:
    namespace = await client.create(NAMESPACE, new(NAMESPACE, "n", spec={"finalizers": ["example.com/hold"]}))
    assert namespace["spec"]["finalizers"] == ["example.com/hold", "kubernetes"]
    await client.delete(NAMESPACE, "n")
    kept = await client.patch(NAMESPACE, "n", MergePatch({"spec": {"finalizers": []}}))
    assert "example.com/hold" in kept["spec"]["finalizers"]
    body = {**kept, "spec": {"finalizers": []}}
    await client.transport.request(Request("PUT", NAMESPACE.path(name="n", subresource="finalize"), body=body))

    async def gone() -> bool:
        return server.store.get("namespaces", Key("", "n")) is None

    await until(gone)


@pytest.mark.parametrize("body", [[], {"spec": []}, {"spec": {"finalizers": "x"}}, {"metadata": {"name": "other"}}])
async def test_invalid_finalize_is_rejected(client: Client, body: Any) -> None:
    path = NAMESPACE.path(name="default", subresource="finalize")
    with pytest.raises(BadRequest):
        await client.transport.request(Request("PUT", path, body=body))


async def test_subresources_reject_other_methods(client: Client) -> None:
    await client.create(POD, pod("p"), "default")
    with pytest.raises(MethodNotAllowed):
        await client.transport.request(Request("GET", POD.path("default", "p", "binding")))
    with pytest.raises(NotFound):
        await client.transport.request(Request("GET", POD.path("default", "p", "nonsense")))
