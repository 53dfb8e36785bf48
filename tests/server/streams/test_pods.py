"""CPU and memory of a node's pods through the API server: ``nodes/NODE/proxy/stats/summary``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.api.kinds import NODE
from sandpool.kube.errors import Forbidden, NotFound, ServiceUnavailable
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.server.request.messages import User
from sandpool.testing.objects import new
from tests.support.fake_pod_access import FakePodAccess, Play

SUMMARY = {"node": {"nodeName": "one"}, "pods": []}


async def _no_commands(*_: object) -> int:
    return 1


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    await server.start()
    await server.client().create(NODE, new(NODE, "one"))
    play: Play = _no_commands
    server.pod_access = FakePodAccess(play)
    yield server
    await server.stop()


async def ask(server: ApiServer, path: str, user: User | None = None) -> object:
    client = server.client() if user is None else server.client(user)
    return await client.transport.request(Request("GET", NODE.path(None, *path.split("/", 1))))


async def test_node_stats_are_those_of_its_kubelet(server: ApiServer) -> None:
    pod_access = server.pod_access
    assert isinstance(pod_access, FakePodAccess)
    with pytest.raises(ServiceUnavailable, match='node "one" cannot be reached'):
        await ask(server, "one/proxy/stats/summary")
    pod_access.summary = SUMMARY
    assert await ask(server, "one/proxy/stats/summary") == SUMMARY


async def test_other_paths_of_a_node_are_not_proxied(server: ApiServer) -> None:
    for path in ("one/proxy", "one/proxy/run/ns/pod/main", "one/proxy/stats", "two/proxy/stats/summary"):
        with pytest.raises(NotFound):
            await ask(server, path)


async def test_node_stats_need_permission_to_get_nodes_proxy(server: ApiServer) -> None:
    with pytest.raises(Forbidden, match=r"nodes/proxy"):
        await ask(server, "one/proxy/stats/summary", User("alice", (), "alice-uid"))
