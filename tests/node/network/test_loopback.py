from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path

import pytest

from sandpool.api.resource import Object
from sandpool.node.network.loopback import LoopbackNetwork


def pod(uid: str) -> Object:
    return {"metadata": {"uid": uid}}


async def test_two_pods_can_listen_on_the_same_port(tmp_path: Path) -> None:
    network = LoopbackNetwork(tmp_path / "addresses")
    await network.start()
    one, two = await network.attach(pod("1")), await network.attach(pod("2"))
    assert one.netns is None and one.addresses != two.addresses
    with closing(socket.create_server((one.addresses[0], 0))) as first:
        port = first.getsockname()[1]
        with closing(socket.create_server((two.addresses[0], port))) as second:
            for uid, server in (("1", first), ("2", second)):
                # What a pod would call its loopback address is its own, and never the host's.
                for host in ("", "127.0.0.1"):
                    with closing(await network.dial(uid, port, host)):
                        accepted, _ = await asyncio.to_thread(server.accept)
                        accepted.close()
        with pytest.raises(ConnectionRefusedError):
            await network.dial("2", port)
    await network.stop()
    assert not (tmp_path / "addresses").exists()


async def test_pod_keeps_its_address_across_a_restart(tmp_path: Path) -> None:
    network = LoopbackNetwork(tmp_path / "addresses")
    await network.start()
    attached = await network.attach(pod("1"))
    await network.attach(pod("2"))
    await network.detach("2")
    await network.stop(keep=True)

    again = LoopbackNetwork(tmp_path / "addresses")
    await again.start()
    assert await again.attached() == {"1"}
    assert await again.attach(pod("3")) != attached
    assert await again.attach(pod("1")) == attached
    await again.detach("1")
    with pytest.raises(ConnectionRefusedError):
        await again.dial("1", 1)


async def test_missing_enforcement_is_reported(tmp_path: Path) -> None:
    assert "not enforced" in LoopbackNetwork(tmp_path).weaknesses["SandboxNetworkShared"]
