"""Uploads that do not fit into a sandbox: an answer with the numbers, and the sandbox lives."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from sandpool.api.conditions import STATE_LOST
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import IN_MEMORY, ROOT_MEDIUM
from sandpool.api.resource import Object
from tests.support.applied_pool import Applied, applied
from tests.support.playground import Playground

pytestmark = pytest.mark.isolation

MB = 1_000_000
IN_MEMORY_ROOT: Object = {"annotations": {ROOT_MEDIUM: IN_MEMORY}}
VOLUMES: Object = {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}
MOUNTED: Object = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}


async def uploaded(home: Playground, made: Applied, name: str, size: int) -> tuple[int, str]:
    """Upload so many bytes through the router, and return status and text of the answer."""
    form = aiohttp.FormData()
    form.add_field("file", BytesIO(bytes(size)), filename=name)
    sandbox = (await made.get(SANDBOX_CLAIM, made.name))["status"]["sandbox"]["name"]
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{home.router}/upload", data=form, headers={"X-Sandbox-ID": sandbox}) as answer,
    ):
        return answer.status, await answer.text()


async def survives(home: Playground, made: Applied) -> None:
    """Check that the sandbox runs commands, and has not lost its state."""
    assert home.works("exec", made.name, "--", "python3", "-c", "print(6 * 7)") == "42\n"
    conditions = (await made.get(SANDBOX_CLAIM, made.name))["status"]["conditions"]
    assert STATE_LOST not in [each["type"] for each in conditions]


@pytest.mark.parametrize(
    ("name", "metadata", "limits"),
    [
        ("in-memory", IN_MEMORY_ROOT, {"memory": "128Mi"}),
        ("in-memory-with-size", IN_MEMORY_ROOT, {"memory": "128Mi", "ephemeral-storage": "1Gi"}),
        ("on-disk", {}, {"memory": "128Mi", "ephemeral-storage": "96Mi"}),
    ],
)
async def test_upload_that_does_not_fit_into_the_root_is_refused_and_the_sandbox_lives(
    home: Playground, name: str, metadata: Object, limits: dict[str, str]
) -> None:
    async with applied(home, name, metadata=metadata, resources={"limits": limits}) as made:
        await made.claimed()
        status, said = await uploaded(home, made, "all.bin", 120 * MB)
        assert status == 507 and re.search(r"120\d{6} bytes do not fit: \d+ bytes are free", said), said
        assert (await uploaded(home, made, "most.bin", 60 * MB))[0] == 200
        status, said = await uploaded(home, made, "more.bin", 90 * MB)
        assert status == 507 and "bytes are free" in said
        await survives(home, made)
        assert home.works("exec", name, "--", "sh", "-c", "stat -c %s most.bin; ls more.bin 2>&1 || true").startswith(
            f"{60 * MB}\n"
        )


@pytest.mark.parametrize(("metadata", "root"), [({}, "on-disk"), (IN_MEMORY_ROOT, "in-memory")])
@pytest.mark.parametrize("memory", ["128Mi", "64Mi"])
async def test_full_volume_and_root_in_memory_leave_room_for_commands(
    home: Playground, metadata: Object, root: str, memory: str
) -> None:
    """Whatever is in memory shares the limit: both together must not use it up."""
    resources: Any = {"limits": {"memory": memory, "ephemeral-storage": "512Mi"}}
    async with applied(
        home, f"full-{root}-{memory.lower()}", metadata=metadata, pod=VOLUMES, resources=resources, **MOUNTED
    ) as made:
        await made.claimed()
        fill = "for d in /scratch /tmp; do dd if=/dev/zero of=$d/fill bs=1M count=2000 2>/dev/null || echo full; done"
        assert home.works("exec", made.name, "--", "sh", "-c", fill).splitlines() == ["full", "full"]
        status, said = await uploaded(home, made, "late.bin", 10 * MB)
        assert status == 507, said
        await survives(home, made)
