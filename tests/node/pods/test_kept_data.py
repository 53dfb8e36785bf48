"""Data in a claimed volume survives pods and is deleted with the claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.real_node import RealNode, real_node

pytestmark = pytest.mark.isolation

VOLUME = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
MOUNT = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}


async def run(rig: RealNode, script: str) -> str:
    """Run a script in a new pod with the volume, delete the pod and return its output."""
    name = await rig.create("sh", "-c", f"{script}; echo done; exec sleep 1000", container=MOUNT, spec=VOLUME)
    said = await rig.says(name, "done\n")
    await rig.delete(name)
    await rig.gone(name)
    return said.removesuffix("done\n")


async def test_data_outlives_pods_and_is_deleted_with_its_claim(tmp_path: Path) -> None:
    async with real_node(tmp_path) as rig:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await rig.client.create(PERSISTENT_VOLUME_CLAIM, new(PERSISTENT_VOLUME_CLAIM, "data", spec=spec), "default")
        assert await run(rig, "ls /data; mkdir /data/notes; echo kept > /data/notes/one") == ""
        # The next pod is another user on the host and still owns the files.
        assert await run(rig, "cat /data/notes/one; echo more >> /data/notes/one") == "kept\n"
        assert await run(rig, "cat /data/notes/one") == "kept\nmore\n"
        await rig.client.delete(PERSISTENT_VOLUME_CLAIM, "data", "default")

        async def removed() -> bool:
            return not list((tmp_path / "node" / "volumes").iterdir())

        await until(removed)
