"""Pods that came and went leave nothing behind: counted before and after."""

from __future__ import annotations

import os
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sandpool.node.network.netns import NetworkNamespace
from sandpool.testing.waiting import until
from tests.support.real_node import RealNode, real_node

pytestmark = pytest.mark.isolation

CYCLES = 50
AT_ONCE = 10


def count(rig: RealNode, directory: Path) -> Counter[str]:
    """Everything on the machine that belongs to this node and its pods."""
    settings = rig.node.settings
    users = range(settings.first_host_user, settings.first_host_user + 1_000)
    router = NetworkNamespace(settings.directory / "network" / "router")
    return Counter(
        {
            "processes": sum(1 for status in Path("/proc").glob("[0-9]*/status") if _user(status) in users),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "descriptors of the launcher": len(os.listdir(f"/proc/{rig.node.launcher.pid}/fd")),
            "mounts": Path("/proc/self/mountinfo").read_text().count(str(directory)),
            "cgroups": len(rig.pod_cgroups()),
            "interfaces": len(router.call(socket.if_nameindex)),
            "rules": len(router.call(_ruleset).split()),
            "files": sum(1 for _ in settings.directory.rglob("*")),
        }
    )


def _ruleset() -> str:
    listing = subprocess.run(
        ["nft", "list", "ruleset"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    return listing.stdout


def _user(status: Path) -> int:
    try:
        fields = dict(line.partition(":")[::2] for line in status.read_text().splitlines())
    except OSError:
        return -1
    return -1 if fields["State"].strip().startswith("Z") else int(fields["Uid"].split()[0])


async def cycle(rig: RealNode, directory: Path) -> Counter[str]:
    """Run and delete pods with a volume, output and an exec; return what existed meanwhile."""
    spec = {"volumes": [{"name": "data", "emptyDir": {}}], "terminationGracePeriodSeconds": 5}
    container = {
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/data/file"]}},
    }
    script = "echo here; touch /data/file; exec sleep 1000"
    names = [await rig.create("sh", "-c", script, container=container, spec=spec) for _ in range(AT_ONCE)]
    for name in names:
        await rig.ready(name)
    during = count(rig, directory)
    for name in names:
        await rig.delete(name)

    async def none_left() -> bool:
        return not rig.node.agent.workers

    await until(none_left)
    return during


async def test_pod_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    async with real_node(tmp_path) as rig:
        during = await cycle(rig, tmp_path)  # what is made once and kept is there from now on
        before = count(rig, tmp_path)
        assert all(during[what] >= before[what] + AT_ONCE for what in before), f"{during} is not more than {before}"
        for _ in range(CYCLES // AT_ONCE):
            await cycle(rig, tmp_path)

        async def as_before() -> bool:
            return count(rig, tmp_path) == before

        try:
            await until(as_before, within=10)
        except TimeoutError:
            after = count(rig, tmp_path)
            raise AssertionError(f"left behind: {after - before}, missing: {before - after}") from None
