"""A full disk refuses writes, keeps serving reads, and is forgotten once there is room again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import InsufficientStorage
from sandpool.server.api_server import ApiServer
from sandpool.server.serving.daemon import Daemon, ServerOptions


async def fill(client: Client, prefix: str = "n") -> int:
    """Create objects until the disk is full; returns how many there was room for."""
    for number in range(1000):
        obj = {"metadata": {"name": f"{prefix}{number}"}, "data": {"k": "x" * 50_000}}
        try:
            await client.create(CONFIG_MAP, obj, "default")
        except InsufficientStorage as refused:
            assert refused.code == 507
            assert "disk" in refused.message
            return number
    raise AssertionError("the disk never filled up")


async def names(client: Client) -> set[str]:
    return {item["metadata"]["name"] for item in (await client.list(CONFIG_MAP, "default"))["items"]}


async def test_full_disk_rejects_writes_and_serves_reads(small_disk: Path) -> None:
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


async def test_server_starts_on_a_full_disk_and_loses_nothing(small_disk: Path) -> None:
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


def fill_up(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(os.urandom(4096))


async def test_server_killed_on_a_full_disk_starts_again_and_deletes(larger_disk: Path) -> None:
    data = larger_disk / "data"
    server = ApiServer(data)
    await server.start()
    stored = await fill(server.client())
    # What a killed server leaves: the write-ahead log is not in the database yet, its index is gone.
    killed = {path.name: path.read_bytes() for path in data.iterdir() if not path.name.endswith("-shm")}
    await server.stop()
    for path in data.iterdir():
        path.unlink()
    for name, content in killed.items():
        (data / name).write_bytes(content)
    fill_up(larger_disk / "filler")

    server = ApiServer(data)
    await server.start()
    client = server.client()
    assert await names(client) == {f"n{number}" for number in range(stored)}
    await fill(client, "more")
    for name in await names(client):
        await client.delete(CONFIG_MAP, name, "default")
    assert await names(client) == set()
    await client.create(CONFIG_MAP, {"metadata": {"name": "more"}, "data": {"k": "x" * 50_000}}, "default")
    await server.stop()


async def test_deletions_on_a_full_disk_use_the_reserve(larger_disk: Path) -> None:
    server = ApiServer(larger_disk / "data")
    await server.start()
    client = server.client()
    stored = await fill(client)
    fill_up(larger_disk / "filler")
    for number in range(stored):
        await client.delete(CONFIG_MAP, f"n{number}", "default")
    assert await names(client) == set()
    await server.stop()


async def test_killed_server_writes_another_kubeconfig_on_a_full_disk(larger_disk: Path) -> None:
    """A start on another port writes the kubeconfig before any deletion has made room."""
    settings = ServerOptions(larger_disk / "data", port=0)
    daemon = Daemon(settings)
    await daemon.start()
    reserve = larger_disk / "data" / "reserve"
    size = reserve.stat().st_size
    await daemon.stop()
    with reserve.open("wb") as file:  # a killed server leaves all of it
        os.posix_fallocate(file.fileno(), 0, size)
    fill_up(larger_disk / "filler")
    daemon.kubeconfig.write_text(daemon.kubeconfig.read_text().replace("127.0.0.1", "127.0.0.2"))
    daemon = Daemon(settings)
    await daemon.start()
    assert daemon.url in daemon.kubeconfig.read_text()
    await daemon.stop()


@pytest.mark.parametrize("name", ["head", "reserve"])
async def test_links_in_the_data_directory_are_not_followed(tmp_path: Path, name: str) -> None:
    data, victim = tmp_path / "data", tmp_path / "victim"
    server = ApiServer(data)
    await server.start()
    await server.stop()
    (data / name).rename(victim)
    (data / name).symlink_to(victim)
    if name == "reserve":
        os.truncate(victim, 1 << 20)  # a server shortens its reserve when it stops
    before = victim.read_bytes()
    server = ApiServer(data)
    with contextlib.suppress(OSError):
        await server.start()
        await server.client().create(CONFIG_MAP, {"metadata": {"name": "new"}}, "default")
        await server.stop()
    assert victim.read_bytes() == before
