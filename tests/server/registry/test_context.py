"""Responses and watches show only durable state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD
from sandpool.kube.client import Client, JsonPatch, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, InsufficientStorage, InternalError, NotFound
from sandpool.server.api_server import ApiServer
from sandpool.server.store.journal import DiskFull, JournalFailed
from sandpool.testing.objects import new, pod


class Disk(Protocol):
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def fail(self, error: Exception) -> None: ...


async def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a request and let it come as far as it can without the disk."""
    task = asyncio.create_task(work)
    for _ in range(10):
        await asyncio.sleep(0)
    return task


def set_to(value: str) -> MergePatch:
    return MergePatch({"data": {"k": value}})


async def test_readers_and_watches_see_only_durable_writes(client: Client, disk: Disk) -> None:
    listed = await client.list(CONFIG_MAP, "default")
    watch = client.watch(CONFIG_MAP, "default", resource_version=listed["metadata"]["resourceVersion"])
    next_event = asyncio.ensure_future(anext(watch))
    disk.hold()
    creating = await begun(client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default"))
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "a", "default")
    assert (await client.list(CONFIG_MAP, "default"))["items"] == []
    assert not creating.done()
    assert not next_event.done()
    disk.release()
    created = await creating
    assert (await next_event).object == created == await client.get(CONFIG_MAP, "a", "default")
    await watch.aclose()  # type: ignore[attr-defined]


async def test_write_without_changes_waits_for_the_write_it_repeats(client: Client, disk: Disk) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    disk.hold()
    first = await begun(client.patch(CONFIG_MAP, "a", set_to("v"), "default"))
    second = await begun(client.patch(CONFIG_MAP, "a", set_to("v"), "default"))
    assert not second.done()
    disk.release()
    assert await first == await second


async def test_write_without_changes_fails_with_the_write_it_repeats(client: Client, disk: Disk) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    disk.hold()
    first = await begun(client.patch(CONFIG_MAP, "a", set_to("v"), "default"))
    second = await begun(client.patch(CONFIG_MAP, "a", set_to("v"), "default"))
    disk.fail(DiskFull("no space"))
    for write in (first, second):
        with pytest.raises(InsufficientStorage):
            await write
    assert "data" not in await client.get(CONFIG_MAP, "a", "default")


async def test_waiting_for_durability_does_not_depend_on_the_order_of_writers(client: Client, disk: Disk) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    disk.hold()
    first = await begun(client.patch(CONFIG_MAP, "a", set_to("v"), "default"))
    second = await begun(client.patch(CONFIG_MAP, "a", set_to("v"), "default"))
    first.cancel()  # a client that went away: its write stays accepted
    await asyncio.sleep(0)
    disk.release()
    assert (await second)["data"] == {"k": "v"}


async def test_stop_ends_every_wait_for_durability(server: ApiServer, client: Client, disk: Disk) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    disk.hold()
    await begun(client.patch(CONFIG_MAP, "a", set_to("1"), "default"))  # is being synced
    second = await begun(client.patch(CONFIG_MAP, "a", set_to("2"), "default"))  # waits for its turn
    third = await begun(client.patch(CONFIG_MAP, "a", set_to("2"), "default"))
    second.cancel()
    await asyncio.sleep(0)
    stopping = await begun(server.stop())
    disk.release()
    await stopping
    assert (await asyncio.wait_for(third, 5))["data"] == {"k": "2"}


async def test_already_exists_is_answered_when_the_object_is_durable(client: Client, disk: Disk) -> None:
    disk.hold()
    first = await begun(client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default"))
    second = await begun(client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default"))
    disk.release()
    with pytest.raises(AlreadyExists):
        await second
    assert await client.get(CONFIG_MAP, "a", "default") == await first


async def test_conflict_is_answered_when_the_other_write_is_durable(client: Client, disk: Disk) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    version = created["metadata"]["resourceVersion"]
    disk.hold()
    first = await begun(client.patch(CONFIG_MAP, "a", set_to("1"), "default"))
    stale = MergePatch({"metadata": {"resourceVersion": version}, "data": {"k": "2"}})
    second = await begun(client.patch(CONFIG_MAP, "a", stale, "default"))
    disk.release()
    with pytest.raises(Conflict):
        await second
    assert await client.get(CONFIG_MAP, "a", "default") == await first


async def test_not_found_is_answered_when_the_deletion_is_durable(client: Client, disk: Disk) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    disk.hold()
    await begun(client.delete(CONFIG_MAP, "a", "default"))
    second = await begun(client.delete(CONFIG_MAP, "a", "default"))
    disk.release()
    with pytest.raises(NotFound):
        await second
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "a", "default")


@pytest.mark.parametrize(
    "error, refusal, code",
    [(DiskFull("no space"), InsufficientStorage, 507), (JournalFailed("broken"), InternalError, 500)],
)
async def test_failed_commit_undoes_all_writes_built_on_it(
    server: ApiServer, client: Client, disk: Disk, error: Exception, refusal: type[ApiError], code: int
) -> None:
    before = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "0"}), "default")
    await client.create(POD, pod("p"), "default")
    revision = server.store.revision
    disk.hold()
    writes = [
        await begun(client.patch(CONFIG_MAP, "a", set_to("1"), "default")),
        await begun(client.patch(CONFIG_MAP, "a", set_to("2"), "default")),
        await begun(client.create(CONFIG_MAP, new(CONFIG_MAP, "b"), "default")),
        await begun(client.delete(POD, "p", "default")),
    ]
    disk.fail(error)
    for write in writes:
        with pytest.raises(refusal) as refused:
            await write
        assert refused.value.code == code
    assert server.store.revision == revision
    assert await client.get(CONFIG_MAP, "a", "default") == before
    assert "deletionTimestamp" not in (await client.get(POD, "p", "default"))["metadata"]
    after = await client.patch(CONFIG_MAP, "a", set_to("3"), "default")
    assert after["metadata"]["resourceVersion"] == str(revision + 1)


async def test_writers_build_on_each_other_without_waiting(client: Client, disk: Disk) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"n": ""}), "default")
    disk.hold()
    appends = [
        await begun(
            client.patch(CONFIG_MAP, "a", JsonPatch([{"op": "add", "path": f"/data/k{n}", "value": ""}]), "default")
        )
        for n in range(5)
    ]
    disk.release()
    await asyncio.gather(*appends)
    assert set((await client.get(CONFIG_MAP, "a", "default"))["data"]) == {"n", "k0", "k1", "k2", "k3", "k4"}
