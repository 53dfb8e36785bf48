"""The client: which request each call makes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sandpool.api.resource import ResourceType
from sandpool.kube.client import ApplyPatch, Client, JsonPatch, MergePatch, Patch, StrategicPatch
from sandpool.kube.transport import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    Request,
    WatchEvent,
)

POD = ResourceType("", "v1", "Pod", "pods")
NODE = ResourceType("", "v1", "Node", "nodes", namespaced=False)
CLAIM = ResourceType("extensions.agents.x-k8s.io", "v1beta1", "SandboxClaim", "sandboxclaims")
CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/ns/sandboxclaims"


class Recorder:
    """A transport that answers with what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.closed = False

    async def request(self, request: Request) -> Any:
        self.sent.append(request)
        return {"kind": "Answer"}

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        self.sent.append(request)
        yield WatchEvent("ADDED", {})

    async def close(self) -> None:
        self.closed = True


def sandpool(**more: str) -> dict[str, str]:
    return {"fieldManager": "sandpool", **more}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda c: c.get(POD, "a", "ns"), Request("GET", "/api/v1/namespaces/ns/pods/a")),
        (lambda c: c.get(NODE, "n"), Request("GET", "/api/v1/nodes/n")),
        (lambda c: c.get(CLAIM, "a/b", "ns", subresource="status"), Request("GET", f"{CLAIMS}/a%2Fb/status")),
        (
            lambda c: c.get(CLAIM, "a", "ns", resource_version="0"),
            Request("GET", f"{CLAIMS}/a", {"resourceVersion": "0"}),
        ),
        (lambda c: c.list(POD), Request("GET", "/api/v1/pods")),
        (
            lambda c: c.list(
                CLAIM,
                "ns",
                label_selector="a=b",
                field_selector="metadata.name=c",
                limit=5,
                continue_token="t",
                resource_version="7",
                resource_version_match="Exact",
            ),
            Request(
                "GET",
                CLAIMS,
                {
                    "labelSelector": "a=b",
                    "fieldSelector": "metadata.name=c",
                    "limit": "5",
                    "continue": "t",
                    "resourceVersion": "7",
                    "resourceVersionMatch": "Exact",
                },
            ),
        ),
        (lambda c: c.create(CLAIM, {"x": 1}, "ns"), Request("POST", CLAIMS, sandpool(), {"x": 1})),
        (
            lambda c: c.create(CLAIM, {"metadata": {"namespace": "ns"}}),
            Request("POST", CLAIMS, sandpool(), {"metadata": {"namespace": "ns"}}),
        ),
        (
            lambda c: c.create(POD, {}, "ns", name="p", subresource="eviction", dry_run=True, field_manager="me"),
            Request("POST", "/api/v1/namespaces/ns/pods/p/eviction", {"dryRun": "All", "fieldManager": "me"}, {}),
        ),
        (
            lambda c: c.create(NODE, {}, field_validation="Strict"),
            Request("POST", "/api/v1/nodes", sandpool(fieldValidation="Strict"), {}),
        ),
        (lambda c: c.delete(CLAIM, "a", "ns"), Request("DELETE", f"{CLAIMS}/a")),
        (
            lambda c: c.delete(
                CLAIM,
                "a",
                "ns",
                propagation_policy="Foreground",
                grace_period_seconds=0,
                uid="u",
                resource_version="3",
                dry_run=True,
            ),
            Request(
                "DELETE",
                f"{CLAIMS}/a",
                body={
                    "kind": "DeleteOptions",
                    "apiVersion": "v1",
                    "propagationPolicy": "Foreground",
                    "gracePeriodSeconds": 0,
                    "preconditions": {"uid": "u", "resourceVersion": "3"},
                    "dryRun": ["All"],
                },
            ),
        ),
    ],
)
async def test_each_call_sends_its_request(call: Callable[[Client], Awaitable[Any]], expected: Request) -> None:
    transport = Recorder()
    assert await call(Client(transport)) == {"kind": "Answer"}
    assert transport.sent == [expected]
    assert expected.content_type == JSON


@pytest.mark.parametrize(
    ("patch", "content_type"),
    [
        (MergePatch({"a": None}), MERGE_PATCH),
        (JsonPatch([{"op": "test", "path": ""}]), JSON_PATCH),
        (StrategicPatch({"$patch": "replace"}), STRATEGIC_MERGE_PATCH),
        (ApplyPatch({"kind": "Pod"}), APPLY_PATCH),
    ],
)
async def test_each_patch_sends_its_media_type_and_options(patch: Patch, content_type: str) -> None:
    transport = Recorder()
    client = Client(transport, field_manager="tester")
    await client.patch(CLAIM, "a", patch, "ns", subresource="status", force=True, dry_run=True)
    query = {"dryRun": "All", "fieldManager": "tester", "force": "true"}
    assert transport.sent == [Request("PATCH", f"{CLAIMS}/a/status", query, patch.body, content_type)]


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ({}, {"watch": "true", "allowWatchBookmarks": "true"}),
        ({"allow_bookmarks": False, "resource_version": "5"}, {"watch": "true", "resourceVersion": "5"}),
        (
            {"send_initial_events": True, "timeout_seconds": 30, "label_selector": "a", "field_selector": "b=c"},
            {
                "watch": "true",
                "labelSelector": "a",
                "fieldSelector": "b=c",
                "resourceVersionMatch": "NotOlderThan",
                "allowWatchBookmarks": "true",
                "sendInitialEvents": "true",
                "timeoutSeconds": "30",
            },
        ),
    ],
)
async def test_watch_options_become_query_parameters(options: Any, query: dict[str, str]) -> None:
    transport = Recorder()
    assert [event async for event in Client(transport).watch(POD, **options)] == [WatchEvent("ADDED", {})]
    assert transport.sent == [Request("GET", "/api/v1/pods", query)]


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_name_that_changes_the_path_is_rejected(name: str) -> None:
    """DELETE of the empty name would be DELETE of the collection."""
    client = Client(Recorder())
    with pytest.raises(ValueError, match="not the name of an object"):
        await client.delete(POD, name, "ns")
    with pytest.raises(ValueError, match="not the name of an object"):
        await client.get(NODE, name)


async def test_namespaced_type_requires_a_namespace() -> None:
    with pytest.raises(ValueError, match="needs a namespace"):
        await Client(Recorder()).patch(POD, "a", MergePatch({}))


async def test_close_closes_the_transport() -> None:
    transport = Recorder()
    await Client(transport).close()
    assert transport.closed
