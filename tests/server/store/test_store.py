from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandpool.api.resource import Key, Object
from sandpool.server.store.entry import Change, Overrun
from sandpool.server.store.history import Compacted
from sandpool.server.store.journal import Batch, DiskFull, Journal
from sandpool.server.store.store import Store
from sandpool.server.store.watch import MAX_BACKLOG


def thing(name: str, value: int = 0, **labels: str) -> Object:
    return {"kind": "Thing", "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}, "value": value}


class HeldJournal(Journal):
    """A journal whose commits wait until the test lets them go, or fail as it says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.held: list[tuple[Batch, Callable[[Exception | None], object]]] = []

    def commit(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        self.held.append((batch, done))

    def release(self, error: Exception | None = None) -> None:
        batch, done = self.held.pop(0)
        if error is None:
            super().commit(batch, done)
        else:
            done(error)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(Journal(tmp_path))
    yield store
    await store.close()


async def put(store: Store, name: str, value: int = 0) -> Object:
    write = store.put("things", Key("ns", name), thing(name, value))
    await write.durable
    return write.object


async def test_revisions_increase_and_are_stamped_on_objects(store: Store) -> None:
    first, second = await put(store, "a"), await put(store, "b")
    assert (first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]) == ("1", "2")
    entry = store.get("things", Key("ns", "a"))
    assert entry is not None
    assert entry.decode() == first


async def test_burst_shares_a_sync(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    store = Store(journal)
    await asyncio.gather(*(put(store, f"n{i}") for i in range(300)))
    assert store.count("things") == 300
    assert journal.commits <= 3
    await store.close()


async def test_readers_see_only_durable_writes(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    store = Store(journal)
    watch = store.watch("things")
    write = store.put("things", Key("ns", "a"), thing("a"))
    await asyncio.sleep(0)
    assert store.get("things", Key("ns", "a")) is None
    assert list(store.scan("things")) == []
    assert store.revision == 0
    head = store.head("things", Key("ns", "a"))
    assert head is not None
    assert not write.durable.done()
    journal.release()
    await write.durable
    assert store.get("things", Key("ns", "a")) is head
    changes = await watch.take()
    assert changes is not None
    assert [change.type for change in changes] == ["ADDED"]
    await store.close()


async def test_writes_build_on_accepted_ones(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    store = Store(journal)
    create = store.put("things", Key("ns", "a"), thing("a", 1))
    await asyncio.sleep(0)
    change = store.put("things", Key("ns", "a"), thing("a", 2))
    remove = store.remove("things", Key("ns", "a"), change.object)
    again = store.put("things", Key("ns", "a"), thing("a", 3))
    journal.release()
    await create.durable
    assert not change.durable.done()
    entry = store.get("things", Key("ns", "a"))
    assert entry is not None
    assert entry.decode()["value"] == 1
    assert [w.change.type for w in (create, change, remove, again)] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    journal.release()
    await again.durable
    entry = store.get("things", Key("ns", "a"))
    assert entry is not None
    assert entry.decode()["value"] == 3
    assert store.head("things", Key("ns", "a")) is entry
    await store.close()
    reopened = Store(Journal(tmp_path))
    assert [e.decode()["value"] for e in reopened.scan("things")] == [3]
    assert reopened.revision == 4
    await reopened.close()


async def test_failed_commit_undoes_all_writes_built_on_it(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    store = Store(journal)
    kept = store.put("things", Key("ns", "kept"), thing("kept"))
    await asyncio.sleep(0)
    journal.release()
    await kept.durable
    watch = store.watch("things")
    first = store.put("things", Key("ns", "a"), thing("a"))
    await asyncio.sleep(0)
    second = store.put("things", Key("ns", "kept"), thing("kept", 2))
    journal.release(DiskFull("no space"))
    await asyncio.sleep(0)
    for write in (first, second):
        with pytest.raises(DiskFull):
            await write.durable
    assert store.head("things", Key("ns", "a")) is None
    head = store.head("things", Key("ns", "kept"))
    assert head is not None
    assert head.decode()["value"] == 0
    assert await watch.take(0) == []
    after = store.put("things", Key("ns", "b"), thing("b"))
    await asyncio.sleep(0)
    journal.release()
    await after.durable
    assert after.object["metadata"]["resourceVersion"] == "2"
    await store.close()
    reopened = Store(Journal(tmp_path))
    assert {e.key[1] for e in reopened.scan("things")} == {"kept", "b"}
    await reopened.close()


async def test_revisions_are_not_reused_after_deleting_and_restarting(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    obj = await put(store, "a")
    await store.remove("things", Key("ns", "a"), obj).durable
    await store.close()
    store = Store(Journal(tmp_path))
    assert store.revision == 2
    assert (await put(store, "b"))["metadata"]["resourceVersion"] == "3"
    await store.close()


async def test_watch_resumes_at_its_revision(store: Store) -> None:
    for value in range(5):
        await put(store, "a", value)
    watch = store.watch("things", "ns", "a", since=2)
    changes = await watch.take()
    assert changes is not None
    assert [change.revision for change in changes] == [3, 4, 5]
    assert [change.object["value"] for change in changes] == [2, 3, 4]


async def test_watch_is_limited_to_its_scope(store: Store) -> None:
    watches = {
        "everything": store.watch("things"),
        "namespace": store.watch("things", "ns"),
        "object": store.watch("things", "ns", "a"),
        "name": store.watch("things", None, "a"),
        "other namespace": store.watch("things", "other"),
        "other object": store.watch("things", "ns", "b"),
        "other resource": store.watch("gadgets"),
    }
    await put(store, "a")
    heard = {name for name, watch in watches.items() if await watch.take(0)}
    assert heard == {"everything", "namespace", "object", "name"}
    for watch in watches.values():
        watch.close()
    assert len(store.resource_store("things").hub) == 0


async def test_closed_watch_ends(store: Store) -> None:
    watch = store.watch("things")
    waiting = asyncio.ensure_future(watch.take())
    await asyncio.sleep(0)
    watch.close()
    assert await waiting is None


async def test_slow_watcher_is_cut_off(store: Store) -> None:
    await put(store, "a")
    entry = store.get("things", Key("ns", "a"))
    assert entry is not None
    watch = store.watch("things")
    for _ in range(MAX_BACKLOG + 1):
        watch.deliver(Change("MODIFIED", entry, entry))
    with pytest.raises(Overrun):
        await watch.take()


async def test_slow_watchers_hold_no_more_than_the_history(tmp_path: Path) -> None:
    """However many watches fall behind, at whatever revision they stopped to read."""
    store = Store(Journal(tmp_path), max_bytes=1000)
    watches = []
    for value in range(50):
        watches.append(store.watch("things"))
        await put(store, "a", value)
    kept = len(store.resource_store("things").history)
    assert kept < 25, "the history is shorter than the backlog of the first watches"
    backlogs = {change for watch in watches for change in watch._changes}
    assert sum(not change.released for change in backlogs) == kept
    for watch in watches[: 50 - kept]:
        with pytest.raises(Overrun):
            await watch.take()
    for watch in watches[50 - kept :]:
        assert await watch.take()


async def test_change_that_is_released_while_it_waits_to_be_sent_ends_the_watch(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path), max_changes=2)
    watch = store.watch("things")
    await put(store, "a")
    changes = await watch.take()
    assert changes
    taken = changes[0]
    await put(store, "a", 2)
    assert taken.entry.revision == taken.revision
    await put(store, "a", 3)
    with pytest.raises(Overrun):
        _ = taken.entry


async def test_histories_of_all_resources_share_a_limit(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path), max_history_bytes=1000)
    for value, resource in enumerate(["few"] * 3 + ["many"] * 30):
        await store.put(resource, Key("ns", "a"), {"metadata": {"uid": "u"}, "value": value}).durable
    few, many = (store.resource_store(resource).history for resource in ("few", "many"))
    assert few.bytes + many.bytes <= 1000
    assert len(few) == 3, "the largest history gives way"
    assert 3 < len(many) < 30


async def test_compaction_bounds_the_history(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path), max_changes=10)
    for value in range(50):
        await put(store, "a", value)
    assert len(store.resource_store("things").history) == 10
    with pytest.raises(Compacted):
        store.watch("things", since=39)
    assert len(await store.watch("things", since=40).take() or ()) == 10
    store.compact("things")
    with pytest.raises(Compacted):
        store.watch("things", since=49)
    store.watch("things", since=50)
    await store.close()


async def test_scan_at_an_earlier_revision_is_served(store: Store) -> None:
    for name in ("a", "c", "e"):
        await put(store, name)
    then = store.revision
    await put(store, "b")
    await put(store, "c", 7)
    entry = store.get("things", Key("ns", "a"))
    assert entry is not None
    await store.remove("things", Key("ns", "a"), entry.decode()).durable

    def names_and_values(revision: int | None, after: str = "") -> list[tuple[str, int]]:
        key = Key("ns", after) if after else None
        return [(e.key[1], e.decode()["value"]) for e in store.scan("things", "ns", after=key, revision=revision)]

    assert names_and_values(None) == [("b", 0), ("c", 7), ("e", 0)]
    assert names_and_values(then) == [("a", 0), ("c", 0), ("e", 0)]
    assert names_and_values(then, after="a") == [("c", 0), ("e", 0)]
    assert names_and_values(then + 1) == [("a", 0), ("b", 0), ("c", 0), ("e", 0)]


async def test_observers_are_called_before_writers_are_answered(store: Store) -> None:
    seen: list[tuple[str, str]] = []
    store.observe(lambda resource, change: seen.append((resource, change.type)))
    await put(store, "a")
    assert seen == [("things", "ADDED")]


async def test_close_finishes_accepted_writes(tmp_path: Path) -> None:
    store = Store(Journal(tmp_path))
    write = store.put("things", Key("ns", "a"), thing("a"))
    await store.close()
    assert write.durable.done()
    with pytest.raises(RuntimeError, match="closed"):
        store.put("things", Key("ns", "b"), thing("b"))
    reopened = Store(Journal(tmp_path))
    assert reopened.count("things") == 1
    await reopened.close()
