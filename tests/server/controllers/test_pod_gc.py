"""Pods whose Node does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandpool.api.kinds import NODE, POD
from sandpool.cli.nodes import NODELESS
from sandpool.kube.client import Client, MergePatch
from sandpool.router import registration
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new, pod

QUARANTINE = 40.0

Passes = Callable[[float], Awaitable[None]]


@pytest.fixture
def client(cluster: ApiServer) -> Client:
    return cluster.client()


async def bound(client: Client, name: str, node: str) -> None:
    await client.create(POD, pod(name, spec={"nodeName": node}), "default")


async def names(client: Client) -> list[str]:
    return sorted(each["metadata"]["name"] for each in (await client.list(POD, "default"))["items"])


async def test_pods_of_a_deleted_node_are_deleted_after_the_quarantine(client: Client, passes: Passes) -> None:
    for name in ("a", "b"):
        await client.create(NODE, new(NODE, name))
        await bound(client, f"on-{name}", name)
    await bound(client, "on-none", "")
    await client.delete(POD, "on-a", "default")  # its node would have to stop it
    await client.delete(NODE, "a")
    await passes(QUARANTINE - 1)
    assert await names(client) == ["on-a", "on-b", "on-none"]
    await passes(2)
    assert await names(client) == ["on-b", "on-none"]


async def test_node_that_returns_keeps_its_pods(client: Client, passes: Passes) -> None:
    await client.create(NODE, new(NODE, "a"))
    await bound(client, "on-a", "a")
    for _ in range(3):
        await client.delete(NODE, "a")
        await passes(QUARANTINE / 2)
        await client.create(NODE, new(NODE, "a"))
        await passes(1)
    await client.delete(NODE, "a")
    await passes(QUARANTINE - 1)
    assert await names(client) == ["on-a"]
    await passes(2)
    assert await names(client) == []


async def test_pod_bound_to_a_nonexistent_node_is_deleted(client: Client, passes: Passes) -> None:
    await bound(client, "lost", "never")
    await passes(QUARANTINE)
    assert await names(client) == []
    await bound(client, "lost", "never")
    await passes(QUARANTINE)
    assert await names(client) == []


async def test_pod_with_a_finalizer_does_not_block_the_others(client: Client, passes: Passes) -> None:
    held = pod("held", metadata={"finalizers": ["example.com/hold"]}, spec={"nodeName": "never"})
    await client.create(POD, held, "default")
    await passes(QUARANTINE)
    await passes(2 * QUARANTINE)
    await bound(client, "lost", "never")
    await passes(QUARANTINE)
    assert await names(client) == ["held"]
    await client.patch(POD, "held", MergePatch({"metadata": {"finalizers": None}}), "default")
    assert await names(client) == []


async def test_restarted_server_checks_existing_pods(cluster: ApiServer, passes: Passes) -> None:
    client = cluster.client()
    await client.create(NODE, new(NODE, "a"))
    await bound(client, "on-a", "a")
    await bound(client, "lost", "gone")
    await cluster.stop()
    await cluster.start()
    await passes(QUARANTINE)
    assert await names(cluster.client()) == ["on-a"]


async def test_exempt_pods_need_no_node(client: Client, passes: Passes) -> None:
    await bound(client, "router", "nowhere")
    await passes(10 * QUARANTINE)
    assert await names(client) == ["router"]


async def test_pod_gc_is_off_by_default(tmp_path: Path, clock: ManualClock) -> None:
    server = ApiServer(tmp_path, clock=clock)
    await server.start()
    await bound(server.client(), "lost", "gone")
    await clock.advance(10 * QUARANTINE)
    assert await names(server.client()) == ["lost"]
    await server.stop()


def test_only_the_router_is_exempt() -> None:
    assert {registration.NODE} == NODELESS
