"""A failed start leaves nothing behind, and pods of an earlier node keep running."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.node.assembly import Node
from sandpool.node.network.routed import RoutedNetwork
from tests.support.real_node import RealNode, real_node

pytestmark = pytest.mark.isolation


class Refusing:
    """Rejects requests to a path."""

    def __init__(self, transport: Transport, path: str) -> None:
        self.transport = transport
        self.path = path

    async def request(self, request: Request) -> object:
        if self.path in request.path:
            raise Forbidden("not here")
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        pass


def traces(rig: RealNode) -> dict[str, object]:
    """Return what a node creates on the machine for itself, not for pods."""
    settings = rig.node.settings
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": sorted(task.get_name() for task in asyncio.all_tasks() if not task.get_name().startswith("Task-")),
        "mounts": Path("/proc/self/mountinfo").read_text().count(str(settings.directory)),
        "cgroups": [
            str(path)
            for pattern in ("sandpool{}", "*/sandpool{}")
            for path in Path("/sys/fs/cgroup").glob(pattern.format(settings.instance))
        ],
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text().split(),
    }


def another(rig: RealNode, refused: str = "nothing") -> Node:
    """A second node on the machine of a stopped one."""
    client = Client(Refusing(rig.server.client(name="node").transport, refused))
    return Node(client, SystemClock(), Random(), rig.node.settings, logs=rig.logs)


@pytest.mark.parametrize("refused", ["/nodes", "/leases"])
async def test_failed_start_is_undone(tmp_path: Path, refused: str) -> None:
    async with real_node(tmp_path) as rig:
        await rig.node.stop()
        before = traces(rig)
        with pytest.raises(Forbidden):
            await another(rig, refused).start()
        assert traces(rig) == before


async def test_failed_network_start_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with real_node(tmp_path) as rig:
        await rig.node.stop()
        before = traces(rig)

        def fail(self: RoutedNetwork) -> None:
            raise OSError("the port is taken")

        monkeypatch.setattr(RoutedNetwork, "_dns_sockets", fail)
        with pytest.raises(OSError, match="the port is taken"):
            await another(rig).start()
        assert traces(rig) == before


async def test_stopped_node_unmounts_volumes_and_continues_with_their_data(tmp_path: Path) -> None:
    volumes = [
        {"name": "disk", "emptyDir": {"sizeLimit": "8Mi"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("disk", "memory")]
    script = "echo run | tee -a /disk/runs >> /memory/runs; cat /disk/runs /memory/runs | wc -l; exec sleep 1000"
    async with real_node(tmp_path) as rig:
        name = await rig.create("sh", "-c", script, container={"volumeMounts": mounts}, spec={"volumes": volumes})
        await rig.says(name, "2\n")
        assert _mounted(rig) == 3, "two volumes and the termination messages"
        await rig.node.stop()
        assert _mounted(rig) == 0
        rig.node = another(rig)
        await rig.node.start()
        try:
            await rig.says(name, "2\n3\n")  # two runs are on disk and one in memory
            await rig.close()
        finally:
            await rig.node.stop()


async def test_failed_start_leaves_running_pods_to_the_next_node(tmp_path: Path) -> None:
    async with real_node(tmp_path) as rig:
        name = await rig.create("sleep", "1000")
        first = (await rig.ready(name))["status"]
        await rig.node.stop(keep=True)
        with pytest.raises(Forbidden):
            await another(rig, "/leases").start()
        rig.node = another(rig)
        await rig.node.start()
        try:
            status = (await rig.ready(name))["status"]
            assert status["containerStatuses"][0]["containerID"] == first["containerStatuses"][0]["containerID"]
            assert status["containerStatuses"][0]["restartCount"] == 0
            assert status["podIP"] == first["podIP"]
            await rig.close()
        finally:
            await rig.node.stop()


def _mounted(rig: RealNode) -> int:
    """Number of mounts of pods."""
    return Path("/proc/self/mountinfo").read_text().count(str(rig.node.settings.directory / "pods"))
