"""Requests and watches of own groups go one way, all others the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpool.api.kinds import AGENTS_GROUP, EXTENSIONS_GROUP, POD, SANDBOX, SANDBOX_CLAIM, SERVICE
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.group_router import GroupRouter
from sandpool.kube.transport import Request, WatchEvent


class Side:
    """Records what it is asked."""

    def __init__(self, *, stores_metadata_with_status: bool = False) -> None:
        self.stores_metadata_with_status = stores_metadata_with_status
        self.seen: list[str] = []
        self.closed = False

    async def request(self, request: Request) -> Any:
        self.seen.append(f"{request.method} {request.path}")
        return {}

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        self.seen.append(f"WATCH {request.path}")
        yield WatchEvent("BOOKMARK", {"metadata": {}})

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def own() -> Side:
    return Side(stores_metadata_with_status=True)


@pytest.fixture
def other() -> Side:
    return Side()


@pytest.fixture
def client(own: Side, other: Side) -> Client:
    return Client(GroupRouter((AGENTS_GROUP, EXTENSIONS_GROUP), own, other))


LOOKALIKE = ResourceType("agents.x-k8s.io.example.com", "v1", "Sandbox", "sandboxes")


async def test_requests_go_to_the_side_of_their_group(client: Client, own: Side, other: Side) -> None:
    await client.get(SANDBOX, "a", "ns")
    await client.patch(SANDBOX_CLAIM, "a", MergePatch({}), "ns", subresource="status")
    await client.get(POD, "a", "ns")
    await client.delete(SERVICE, "a", "ns")
    await client.get(LOOKALIKE, "a", "ns")
    assert own.seen == [
        "GET /apis/agents.x-k8s.io/v1beta1/namespaces/ns/sandboxes/a",
        "PATCH /apis/extensions.agents.x-k8s.io/v1beta1/namespaces/ns/sandboxclaims/a/status",
    ]
    assert other.seen == [
        "GET /api/v1/namespaces/ns/pods/a",
        "DELETE /api/v1/namespaces/ns/services/a",
        "GET /apis/agents.x-k8s.io.example.com/v1/namespaces/ns/sandboxes/a",
    ]


async def test_watches_go_to_the_side_of_their_group(client: Client, own: Side, other: Side) -> None:
    for type in (SANDBOX, POD):
        assert [event.type async for event in client.watch(type)] == ["BOOKMARK"]
    assert (own.seen, other.seen) == (["WATCH /apis/agents.x-k8s.io/v1beta1/sandboxes"], ["WATCH /api/v1/pods"])


def test_own_side_decides_whether_a_status_brings_its_metadata(client: Client, own: Side, other: Side) -> None:
    assert client.stores_metadata_with_status
    assert not Client(GroupRouter((AGENTS_GROUP,), other, own)).stores_metadata_with_status


async def test_close_closes_both(client: Client, own: Side, other: Side) -> None:
    await client.close()
    assert own.closed
    assert other.closed
