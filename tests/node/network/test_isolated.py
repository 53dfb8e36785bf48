from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.api.resource import Object
from sandpool.node.network.isolated import IsolatedNetwork
from sandpool.node.network.netns import NetworkNamespace

pytestmark = pytest.mark.isolation


@pytest_asyncio.fixture
async def network(tmp_path: Path) -> AsyncIterator[IsolatedNetwork]:
    network = IsolatedNetwork(tmp_path / "network", "nft is not installed")
    await network.start()
    yield network
    await network.stop()
    assert not (tmp_path / "network").exists()


def pod(uid: str) -> Object:
    return {"metadata": {"uid": uid}}


async def test_pods_are_isolated_and_reachable_from_the_node(network: IsolatedNetwork) -> None:
    one, two = await network.attach(pod("1")), await network.attach(pod("2"))
    assert one.netns is not None
    assert one.addresses != two.addresses
    assert await network.attach(pod("1")) == one
    address = (one.addresses[0], 8080)
    with closing(NetworkNamespace(one.netns).call(lambda: socket.create_server(address))):
        (await network.dial("1", 8080)).close()
        with pytest.raises(ConnectionRefusedError):
            await network.dial("2", 8080, one.addresses[0])
    with pytest.raises(ConnectionRefusedError, match="pod 3 is not connected"):
        await network.dial("3", 8080)


async def test_next_process_finds_the_pods(network: IsolatedNetwork) -> None:
    before = await network.attach(pod("1-a_b"))
    again = IsolatedNetwork(network.directory, "")
    await again.start()
    assert await again.attached() == {"1-a_b"}
    assert await again.attach(pod("1-a_b")) == before
    other = await again.attach(pod("2"))
    assert other.addresses != before.addresses
    await again.detach("2")


async def test_missing_tools_are_reported(network: IsolatedNetwork) -> None:
    assert network.weaknesses == {
        "SandboxNetworkUnavailable": "sandboxes have no network: nft is not installed",
    }
    await asyncio.gather(*(network.attach(pod(str(number))) for number in range(5)))
    assert len(await network.attached()) == 5
