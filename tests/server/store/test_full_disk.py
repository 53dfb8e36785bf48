"""A full disk refuses writes, keeps serving reads, and is forgotten once there is room again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import InsufficientStorage
from sandpool.server.api_server import ApiServer


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for little more than an empty server."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "sandpool-test", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


async def fill(client: Client) -> int:
    """Create objects until the disk is full; returns how many there was room for."""
    for number in range(1000):
        obj = {"metadata": {"name": f"n{number}"}, "data": {"k": "x" * 50_000}}
        try:
            await client.create(CONFIG_MAP, obj, "default")
        except InsufficientStorage as refused:
            assert refused.code == 507
            assert "disk" in refused.message
            return number
    raise AssertionError("the disk never filled up")


async def names(client: Client) -> set[str]:
    return {item["metadata"]["name"] for item in (await client.list(CONFIG_MAP, "default"))["items"]}


async def test_a_full_disk_refuses_writes_and_serves_reads(small_disk: Path) -> None:
    # Something to remove later, so that there is room again.
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (1 << 20))
    server = ApiServer(small_disk / "data")
    await server.start()
    client = server.client()
    stored = await fill(client)
    assert await names(client) == {f"n{number}" for number in range(stored)}
    assert (await client.get(CONFIG_MAP, "n0", "default"))["data"]["k"] == "x" * 50_000

    ballast.unlink()
    patched = await client.patch(CONFIG_MAP, "n0", MergePatch({"data": {"again": "yes"}}), "default")
    assert patched["data"]["again"] == "yes"
    await server.stop()

    server = ApiServer(small_disk / "data")
    await server.start()
    client = server.client()
    assert await names(client) == {f"n{number}" for number in range(stored)}
    assert (await client.get(CONFIG_MAP, "n0", "default"))["data"]["again"] == "yes"
    await server.stop()


async def test_a_disk_that_is_full_at_the_start_loses_nothing(small_disk: Path) -> None:
    server = ApiServer(small_disk / "data")
    await server.start()
    stored = await fill(server.client())
    await server.stop()
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(os.urandom(4096))
    server = ApiServer(small_disk / "data")
    await server.start()
    assert await names(server.client()) == {f"n{number}" for number in range(stored)}
    await server.stop()
