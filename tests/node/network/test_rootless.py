from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from sandpool.api.resource import Object
from sandpool.node.cgroups.process_identity import start_time
from sandpool.node.launcher.channel import Child
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.unprivileged import HoldNamespacesRequest
from sandpool.node.network import rootless
from sandpool.node.network.rootless import RootlessNetwork
from sandpool.node.pods.interfaces import NetworkFailure
from sandpool.node.runtimes.runtime import RuntimeFailure

POD: Object = {"metadata": {"uid": "1"}}


class Launcher:
    """Starts processes that hold nothing, which is enough to be found again."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.fails = False

    async def launch(self, request: object) -> Child:
        if self.fails:
            raise RuntimeFailure("no")
        process = self._start()
        assert isinstance(request, HoldNamespacesRequest)
        # As who holds the namespaces does it.
        _write(request.record, [request.address, process.pid, start_time(process.pid)])
        return Child(process.pid, os.pidfd_open(process.pid))

    def _start(self) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen(["sleep", "infinity"]))
        return self.started[-1]

    def end(self, number: int) -> None:
        self.started[number].kill()
        self.started[number].wait()


def _write(path: str, content: object) -> None:
    Path(path).write_text(json.dumps(content))


@pytest_asyncio.fixture
async def launcher() -> AsyncIterator[Launcher]:
    launcher = Launcher()
    yield launcher
    for number in range(len(launcher.started)):
        launcher.end(number)


@pytest_asyncio.fixture
async def network(tmp_path: Path, launcher: Launcher) -> RootlessNetwork:
    network = RootlessNetwork(tmp_path / "addresses", cast(LauncherClient, launcher))
    await network.start()
    return network


async def test_pod_keeps_its_address_across_a_restart(
    network: RootlessNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    first = await network.attach(POD)
    assert await network.attach(POD) == first
    later = RootlessNetwork(tmp_path / "addresses", cast(LauncherClient, launcher))
    await later.start()
    assert await later.attach(POD) == first
    assert len(launcher.started) == 1
    await later.detach("1")
    assert launcher.started[0].wait() < 0


async def test_process_with_the_pid_of_a_killed_holder_is_left_alone(
    network: RootlessNetwork, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await network.attach(POD)
    monkeypatch.setattr(rootless, "start_time", lambda pid: 1)  # another process, that is
    with pytest.raises(ConnectionRefusedError):
        await network.dial("1", 80)
    await network.detach("1")
    assert launcher.started[0].poll() is None
    monkeypatch.undo()
    await network.attach(POD)
    monkeypatch.setattr(rootless, "start_time", lambda pid: 1)
    assert (await network.attach(POD)).netns != first.netns
    assert len(launcher.started) == 3


async def test_pod_with_a_killed_holder_gets_another(network: RootlessNetwork, launcher: Launcher) -> None:
    first = await network.attach(POD)
    launcher.end(0)
    second = await network.attach(POD)
    assert (second.addresses, len(launcher.started)) == (first.addresses, 2)
    assert second.netns == Path(f"/proc/{launcher.started[1].pid}/ns/net")


async def test_failed_attachment_releases_its_address(network: RootlessNetwork, launcher: Launcher) -> None:
    launcher.fails = True
    taken = network.addresses._allocated.copy()
    with pytest.raises(NetworkFailure, match="no"):
        await network.attach(POD)
    assert network.addresses._allocated == taken
