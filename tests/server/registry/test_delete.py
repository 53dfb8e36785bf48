from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD, SECRET
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Conflict, InsufficientStorage, NotFound
from sandpool.server.api_server import ApiServer
from sandpool.server.store.journal import DiskFull
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import take
from tests.support.extra_verbs import delete_collection


class Disk(Protocol):
    commits: int

    def hold(self) -> None: ...
    def release(self) -> None: ...
    def fail(self, error: Exception) -> None: ...


async def running(client: Client, name: str, **spec: Any) -> Any:
    """A pod on a node, which is given time to end."""
    return await client.create(POD, pod(name, spec={"nodeName": "n", **spec}), "default")


async def delete_all(client: Client, **query: str) -> Any:
    return await delete_collection(client, CONFIG_MAP, "default", **query)


async def test_dry_run_deletes_nothing(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    await running(client, "p")
    before = server.store.revision
    await client.delete(CONFIG_MAP, "a", "default", dry_run=True)
    shown = await client.delete(POD, "p", "default", dry_run=True)
    assert shown["metadata"]["deletionGracePeriodSeconds"] == 30
    await delete_all(client, dryRun="All")
    assert server.store.revision == before


async def test_delete_answers_a_status_or_the_object(client: Client) -> None:
    secret = await client.create(SECRET, new(SECRET, "s"), "default")
    status = await client.delete(SECRET, "s", "default")
    assert status["details"] == {"name": "s", "kind": "secrets", "uid": secret["metadata"]["uid"]}
    await client.create(POD, pod("p"), "default")
    assert (await client.delete(POD, "p", "default"))["kind"] == "Pod"


async def test_pod_is_marked_before_it_is_deleted_at_once(client: Client) -> None:
    created = await client.create(POD, pod("p"), "default")
    version = created["metadata"]["resourceVersion"]
    watch = client.watch(POD, "default", resource_version=version)
    await client.delete(POD, "p", "default", grace_period_seconds=0)
    marked, gone = await take(watch, 2)
    assert (marked.type, gone.type) == ("MODIFIED", "DELETED")
    assert marked.object["metadata"]["deletionGracePeriodSeconds"] == 0


async def test_grace_period_can_be_shortened_and_not_extended(client: Client) -> None:
    await running(client, "p")
    first = await client.delete(POD, "p", "default", grace_period_seconds=20)
    longer = await client.delete(POD, "p", "default", grace_period_seconds=25)
    assert longer["metadata"] == first["metadata"]
    shorter = await client.delete(POD, "p", "default", grace_period_seconds=5)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    assert shorter["metadata"]["deletionTimestamp"] < first["metadata"]["deletionTimestamp"]
    await client.delete(POD, "p", "default", grace_period_seconds=0)
    with pytest.raises(NotFound):
        await client.get(POD, "p", "default")


async def test_grace_period_beyond_the_calendar_is_handled(client: Client) -> None:
    await running(client, "p", terminationGracePeriodSeconds=2**62)
    doomed = await client.delete(POD, "p", "default")
    assert doomed["metadata"]["deletionTimestamp"] == "9999-12-31T23:59:59Z"


async def test_preconditions_match_uid_and_version(client: Client) -> None:
    created = (await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default"))["metadata"]
    with pytest.raises(Conflict, match="does not match the UID in record"):
        await client.delete(CONFIG_MAP, "a", "default", uid="other")
    with pytest.raises(Conflict, match="The object might have been modified"):
        await client.delete(CONFIG_MAP, "a", "default", resource_version="1")
    await client.delete(CONFIG_MAP, "a", "default", uid=created["uid"], resource_version=created["resourceVersion"])


async def test_propagation_policy_becomes_a_finalizer(client: Client) -> None:
    for name, policy, finalizer in (("f", "Foreground", "foregroundDeletion"), ("o", "Orphan", "orphan")):
        held = new(CONFIG_MAP, name, metadata={"finalizers": ["example.com/hold"]})
        await client.create(CONFIG_MAP, held, "default")
        doomed = await client.delete(CONFIG_MAP, name, "default", propagation_policy=policy)
        assert doomed["metadata"]["finalizers"] == ["example.com/hold", finalizer]
        changed = await client.delete(CONFIG_MAP, name, "default", propagation_policy="Background")
        assert changed["metadata"]["finalizers"] == ["example.com/hold"]


async def test_second_deletion_changes_nothing(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"finalizers": ["example.com/hold"]}), "default")
    first = await client.delete(CONFIG_MAP, "a", "default")
    before = server.store.revision
    assert await client.delete(CONFIG_MAP, "a", "default") == first
    assert server.store.revision == before


# Collections ----------------------------------------------------------------------------------------------------------


async def test_delete_collection_tolerates_concurrent_writes(client: Client) -> None:
    """An object that another client deletes first is no error; one created later stays."""
    names = [f"c{number}" for number in range(12)]
    for name in names:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), "default")

    async def interfere() -> None:
        for name in reversed(names):
            try:
                await client.delete(CONFIG_MAP, name, "default")
            except NotFound:
                pass
            else:
                await client.create(CONFIG_MAP, new(CONFIG_MAP, f"later-{name}"), "default")

    answer, _ = await asyncio.gather(delete_all(client), interfere())
    assert [item["metadata"]["name"] for item in answer["items"]] == sorted(names)
    left = {item["metadata"]["name"] for item in (await client.list(CONFIG_MAP, "default"))["items"]}
    assert not left & set(names)
    assert all(name.startswith("later-") for name in left)


async def test_concurrent_delete_collections_succeed(client: Client) -> None:
    for number in range(6):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, f"c{number}"), "default")
    await asyncio.gather(*(delete_all(client) for _ in range(3)))
    assert (await client.list(CONFIG_MAP, "default"))["items"] == []


async def test_delete_collection_deletes_only_selected_objects(client: Client) -> None:
    for name, value in (("a", "1"), ("b", "2")):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name, metadata={"labels": {"k": value}}), "default")
    await delete_all(client, labelSelector="k=1")
    [left] = (await client.list(CONFIG_MAP, "default"))["items"]
    assert left["metadata"]["name"] == "b"


async def test_delete_collection_answers_the_deleted_objects(client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "1"}), "default")
    await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "2"}}), "default")
    answer = await delete_all(client)
    assert answer["kind"] == "ConfigMapList"
    assert [item["data"] for item in answer["items"]] == [{"k": "2"}]


async def test_delete_collection_is_one_commit(client: Client, disk: Disk) -> None:
    names = [f"c{number:02}" for number in range(60)]
    for name in names:
        held = {"finalizers": ["example.com/hold"]} if name == "c30" else {}
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name, metadata=held), "default")
    before = disk.commits
    answer = await delete_all(client)
    assert disk.commits == before + 1
    assert [item["metadata"]["name"] for item in answer["items"]] == names
    [left] = (await client.list(CONFIG_MAP, "default"))["items"]
    assert left["metadata"]["name"] == "c30" and left["metadata"]["deletionTimestamp"]


async def test_large_delete_collection_lets_other_writes_pass(client: Client, disk: Disk) -> None:
    for number in range(450):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, f"c{number}"), "default")
    disk.hold()
    before, deleting = disk.commits, asyncio.create_task(delete_all(client))
    for _ in range(20):
        await asyncio.sleep(0)
    assert disk.commits == before + 1
    others = await client.list(CONFIG_MAP, "default", limit=1)
    assert others["items"], "who comes in between sees what is committed"
    disk.release()
    assert len((await deleting)["items"]) == 450
    assert disk.commits == before + 2, "the first part and the rest"


async def test_rejected_item_does_not_undo_the_deletion_of_the_others(client: Client, disk: Disk) -> None:
    first, *_ = [await client.create(CONFIG_MAP, new(CONFIG_MAP, name), "default") for name in "abc"]
    preconditions = {"preconditions": {"uid": first["metadata"]["uid"]}}
    before = disk.commits
    with pytest.raises(Conflict, match="does not match the UID in record"):
        await delete_collection(client, CONFIG_MAP, "default", options=preconditions)
    assert disk.commits == before + 1
    left = [item["metadata"]["name"] for item in (await client.list(CONFIG_MAP, "default"))["items"]]
    assert left == ["b", "c"]


async def test_failed_commit_keeps_the_collection(client: Client, disk: Disk) -> None:
    for name in "abc":
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), "default")
    disk.hold()
    deleting, again = asyncio.create_task(delete_all(client)), asyncio.create_task(delete_all(client))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not deleting.done() and not again.done(), "no response before it is durable"
    disk.fail(DiskFull("no space"))
    for task in (deleting, again):
        with pytest.raises(InsufficientStorage):
            await task
    assert len((await client.list(CONFIG_MAP, "default"))["items"]) == 3


@pytest.mark.parametrize("number", [3, 150], ids=["while it is written", "in between"])
async def test_cancelled_delete_collection_leaves_no_half_deleted_object(
    client: Client, disk: Disk, number: int
) -> None:
    for each in range(number):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, f"c{each}"), "default")
    disk.hold()
    deleting = asyncio.create_task(delete_all(client))
    await asyncio.sleep(0)
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    disk.release()
    await delete_all(client)
    assert (await client.list(CONFIG_MAP, "default"))["items"] == []
