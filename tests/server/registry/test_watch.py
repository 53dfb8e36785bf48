from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Expired, Invalid
from sandpool.kube.transport import Request, WatchEvent
from sandpool.server.api_server import ApiServer
from sandpool.server.registry import watch as registry_watch
from sandpool.server.store import watch as store_watch
from sandpool.testing.objects import new
from sandpool.testing.waiting import drain, take


def seen(events: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(event.type, event.object["metadata"]["name"]) for event in events]


def set_label(value: str | None) -> MergePatch:
    return MergePatch({"metadata": {"labels": {"a": value}}})


async def write(client: Client, *names: str) -> None:
    for name in names:
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), "default")


async def version(client: Client) -> str:
    return str((await client.list(CONFIG_MAP))["metadata"]["resourceVersion"])


async def test_watch_misses_and_repeats_nothing_between_list_and_events(client: Client) -> None:
    """Watches are opened while objects are being written, at every stage of their way to the disk."""
    names = [f"c{number}" for number in range(20)]
    writing = asyncio.create_task(write(client, *names))
    watches: list[asyncio.Task[list[WatchEvent]]] = []
    while not writing.done():
        watches.append(asyncio.create_task(take(client.watch(CONFIG_MAP, "default"), len(names))))
        for _ in range(7):
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
    await writing
    for watch in watches:
        assert sorted(seen(await watch)) == sorted(("ADDED", name) for name in names)


async def test_object_that_leaves_the_selection_is_sent_in_its_last_state(client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"labels": {"a": "1"}}, data={"k": "1"}), "default")
    events = client.watch(CONFIG_MAP, "default", label_selector="a=1", resource_version=await version(client))
    left = await client.patch(CONFIG_MAP, "a", set_label("2"), "default")
    await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "2"}}), "default")  # out of sight
    await client.patch(CONFIG_MAP, "a", set_label("1"), "default")
    await client.delete(CONFIG_MAP, "a", "default")
    gone, back, deleted = await take(events, 3)
    assert (gone.type, back.type, deleted.type) == ("DELETED", "ADDED", "DELETED")
    assert gone.object["metadata"]["labels"] == {"a": "1"}
    assert gone.object["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]
    assert back.object["data"] == {"k": "2"}


async def test_expired_revision_is_an_error_event(server: ApiServer, client: Client) -> None:
    then = await version(client)
    await write(client, "a")
    server.store.compact("configmaps")
    with pytest.raises(Expired, match="too old resource version"):
        await anext(client.watch(CONFIG_MAP, resource_version=then))


async def test_watch_that_reads_too_slowly_is_ended(
    server: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "MAX_BACKLOG", 3)
    events = client.watch(CONFIG_MAP, "default", resource_version=await version(client))
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await write(client, "a")
    last = (await first).object["metadata"]["resourceVersion"]
    await write(client, "b", "c", "d", "e", "f")
    assert await drain(events) == []  # not a part of it: it would look as if that were all
    assert len(server.store.resource_store("configmaps").hub) == 0
    missed = await take(client.watch(CONFIG_MAP, "default", resource_version=last), 5)
    assert [name for _, name in seen(missed)] == ["b", "c", "d", "e", "f"]


async def test_bookmark_is_never_ahead_of_the_delivered_events(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that starts over from any bookmark has missed nothing."""
    monkeypatch.setattr(registry_watch, "_BOOKMARK_INTERVAL", 0.001)
    events = client.watch(CONFIG_MAP, "default", resource_version=await version(client))
    names = [f"c{number}" for number in range(15)]
    writing = asyncio.create_task(write(client, *names))
    delivered, bookmarks = 0, 0
    async for event in events:
        revision = int(event.object["metadata"]["resourceVersion"])
        if event.type == "BOOKMARK":
            bookmarks += 1
            known = await client.list(
                CONFIG_MAP, "default", resource_version=str(revision), resource_version_match="Exact"
            )
            assert len(known["items"]) <= delivered
        else:
            delivered += 1
        if delivered == len(names) and bookmarks:
            break
    await writing


async def test_bookmarks_follow_the_revision_of_the_whole_server(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if nothing of interest happens, so that a quiet watch can be resumed after a busy time."""
    monkeypatch.setattr(registry_watch, "_BOOKMARK_INTERVAL", 0.001)
    events = client.watch(CONFIG_MAP, "kube-system", resource_version=await version(client))
    await write(client, "elsewhere")
    newest = int(await version(client))
    async for event in events:
        assert event.type == "BOOKMARK"
        if int(event.object["metadata"]["resourceVersion"]) >= newest:
            break


async def test_end_of_the_initial_events_is_marked(client: Client) -> None:
    await write(client, "a", "b")
    events = client.watch(
        CONFIG_MAP, "default", send_initial_events=True, resource_version_match="NotOlderThan", timeout_seconds=1
    )
    first, second, mark = [await anext(events) for _ in range(3)]
    assert [first.type, second.type, mark.type] == ["ADDED", "ADDED", "BOOKMARK"]
    assert mark.object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert mark.object["metadata"]["resourceVersion"] == await version(client)
    await closed(events)


async def closed(events: AsyncIterator[WatchEvent]) -> None:
    await events.aclose()  # type: ignore[attr-defined]


async def test_initial_events_come_in_chunks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_watch, "_CHUNK", 2)
    await write(client, "a", "b", "c", "d", "e")
    events = client.watch(CONFIG_MAP, "default")
    assert [name for _, name in seen([await anext(events) for _ in range(3)])] == ["a", "b", "c"]
    await write(client, "b2")  # while the client still reads what was there before
    rest = await take(events, 3)
    assert seen(rest) == [("ADDED", "d"), ("ADDED", "e"), ("ADDED", "b2")]


async def test_watch_ends_after_its_timeout(client: Client) -> None:
    events = await drain(client.watch(CONFIG_MAP, "default", timeout_seconds=1))
    assert {event.type for event in events} <= {"BOOKMARK"}


@pytest.mark.parametrize(
    "query",
    [
        {"sendInitialEvents": "true"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "NotOlderThan"},
        {"resourceVersion": "x"},
        {"resourceVersion": "x", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"},
    ],
)
async def test_invalid_watch_options_are_rejected(client: Client, query: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        await anext(client.transport.stream(Request("GET", CONFIG_MAP.path(), {"watch": "true", **query})))


# For any history: what a watch tells, applied to what was there, is what there is -------------------------------------

steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", None, "delete"])), max_size=10)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(before=steps, after=steps)
async def test_selection_is_followed_through_any_history(
    client: Client, before: list[tuple[str, Any]], after: list[tuple[str, Any]]
) -> None:
    await perform(client, before)
    listed = await client.list(CONFIG_MAP, "default", label_selector="a=1")
    known = {item["metadata"]["name"]: item["metadata"] for item in listed["items"]}
    since = listed["metadata"]["resourceVersion"]
    await perform(client, after)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "end", metadata={"labels": {"a": "1"}}), "default")
    async for event in client.watch(CONFIG_MAP, "default", label_selector="a=1", resource_version=since):
        name = event.object["metadata"]["name"]
        if name == "end":
            break
        assert (event.type == "ADDED") == (name not in known), "ADDED is for what the client does not know"
        if event.type == "DELETED":
            del known[name]
        else:
            known[name] = event.object["metadata"]
    await client.delete(CONFIG_MAP, "end", "default")
    now = await client.list(CONFIG_MAP, "default", label_selector="a=1")
    assert known == {item["metadata"]["name"]: item["metadata"] for item in now["items"]}


async def perform(client: Client, steps: list[tuple[str, Any]]) -> None:
    present = {item["metadata"]["name"] for item in (await client.list(CONFIG_MAP, "default"))["items"]}
    for name, value in steps:
        if value == "delete":
            if name in present:
                await client.delete(CONFIG_MAP, name, "default")
                present.remove(name)
        elif name in present:
            await client.patch(CONFIG_MAP, name, set_label(value), "default")
        else:
            await client.create(
                CONFIG_MAP, new(CONFIG_MAP, name, metadata={"labels": {"a": value}} if value else {}), "default"
            )
            present.add(name)
