"""Pods whose Node does not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import NODE, POD
from sandpool.cli.nodes import Choice, nodeless
from sandpool.kube.client import Client, MergePatch
from sandpool.router import presence
from sandpool.server.app import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new, pod

QUARANTINE = 40.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path, clock=clock, nodeless={"nowhere"})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def client(server: ApiServer) -> Client:
    return server.client()


async def bound(client: Client, name: str, node: str) -> None:
    await client.create(POD, pod(name, spec={"nodeName": node}), "default")


async def names(client: Client) -> list[str]:
    return sorted(each["metadata"]["name"] for each in (await client.list(POD, "default"))["items"])


async def wait(server: ApiServer, clock: ManualClock, seconds: float) -> None:
    await clock.advance(seconds)
    assert server.lost_pods is not None
    await server.lost_pods.backlog.settled()


async def test_pods_of_a_deleted_node_are_removed_at_once_after_a_while(
    server: ApiServer, client: Client, clock: ManualClock
) -> None:
    for name in ("a", "b"):
        await client.create(NODE, new(NODE, name))
        await bound(client, f"on-{name}", name)
    await bound(client, "on-none", "")
    await client.delete(POD, "on-a", "default")  # its node would have to stop it
    await client.delete(NODE, "a")
    await wait(server, clock, QUARANTINE - 1)
    assert await names(client) == ["on-a", "on-b", "on-none"]
    await wait(server, clock, 2)
    assert await names(client) == ["on-b", "on-none"]


async def test_a_node_that_comes_back_keeps_its_pods(server: ApiServer, client: Client, clock: ManualClock) -> None:
    await client.create(NODE, new(NODE, "a"))
    await bound(client, "on-a", "a")
    for _ in range(3):
        await client.delete(NODE, "a")
        await wait(server, clock, QUARANTINE / 2)
        await client.create(NODE, new(NODE, "a"))
        await wait(server, clock, 1)
    await client.delete(NODE, "a")
    await wait(server, clock, QUARANTINE - 1)
    assert await names(client) == ["on-a"]
    await wait(server, clock, 2)
    assert await names(client) == []


async def test_a_pod_for_a_node_that_never_was(server: ApiServer, client: Client, clock: ManualClock) -> None:
    await bound(client, "lost", "never")
    await wait(server, clock, QUARANTINE)
    assert await names(client) == []
    await bound(client, "lost", "never")
    await wait(server, clock, QUARANTINE)
    assert await names(client) == []


async def test_a_pod_that_a_finalizer_holds_keeps_no_other(
    server: ApiServer, client: Client, clock: ManualClock
) -> None:
    held = pod("held", metadata={"finalizers": ["example.com/hold"]}, spec={"nodeName": "never"})
    await client.create(POD, held, "default")
    await wait(server, clock, QUARANTINE)
    await wait(server, clock, 2 * QUARANTINE)
    await bound(client, "lost", "never")
    await wait(server, clock, QUARANTINE)
    assert await names(client) == ["held"]
    await client.patch(POD, "held", MergePatch({"metadata": {"finalizers": None}}), "default")
    assert await names(client) == []


async def test_a_new_server_looks_at_what_is_there(server: ApiServer, clock: ManualClock) -> None:
    client = server.client()
    await client.create(NODE, new(NODE, "a"))
    await bound(client, "on-a", "a")
    await bound(client, "lost", "gone")
    await server.stop()
    await server.start()
    await wait(server, clock, QUARANTINE)
    assert await names(server.client()) == ["on-a"]


async def test_some_pods_need_no_node(server: ApiServer, client: Client, clock: ManualClock) -> None:
    await bound(client, "router", "nowhere")
    await wait(server, clock, 10 * QUARANTINE)
    assert await names(client) == ["router"]


async def test_without_being_told_nothing_is_removed(tmp_path: Path, clock: ManualClock) -> None:
    server = ApiServer(tmp_path, clock=clock)
    await server.start()
    await bound(server.client(), "lost", "gone")
    await clock.advance(10 * QUARANTINE)
    assert await names(server.client()) == ["lost"]
    await server.stop()


def test_what_has_no_node_on_one_machine() -> None:
    choice = Choice(2, False, 1000, None, None, False, False, False)
    assert nodeless(choice) == {presence.NODE, "simulated-1", "simulated-2"}
