"""Watching: replay from a version, initial state, selectors, and how a watch ends or is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE, POD
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, BadRequest, Expired
from sandpool.kube.transport import WatchEvent
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import Listener, drain, take
from tests.support.api_access import ApiEndpoint, Raw
from tests.support.extra_verbs import replace


def version(object: SharedObject) -> str:
    found: str = object["metadata"]["resourceVersion"]
    return found


def seen(events: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(event.type, event.object["metadata"]["name"]) for event in events]


async def now(client: Client, namespace: str, type: ResourceType = CONFIG_MAP) -> str:
    return version(await client.list(type, namespace))


# Where it starts


async def test_watch_replays_events_after_its_version(client: Client, namespace: str) -> None:
    start = await now(client, namespace)
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    patched = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "v"}}), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    events = await take(client.watch(CONFIG_MAP, namespace, resource_version=start), 3)
    assert seen(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [event.object for event in events[:2]] == [created, patched]
    events = await take(client.watch(CONFIG_MAP, namespace, resource_version=version(patched)), 1)
    assert seen(events) == [("DELETED", "a")]


async def test_watch_continues_with_live_events(client: Client, namespace: str) -> None:
    start = await now(client, namespace)
    async with Listener(client.watch(CONFIG_MAP, namespace, resource_version=start)) as listener:
        for name in "abc":
            await client.create(CONFIG_MAP, new(CONFIG_MAP, name), namespace)
            assert seen([await listener.next()]) == [("ADDED", name)]


@pytest.mark.parametrize("start", [None, "0"])
async def test_watch_without_a_version_starts_with_existing_objects(
    client: Client, namespace: str, widgets: ResourceType, start: str | None
) -> None:
    for name in "ab":
        await client.create(widgets, new(widgets, name, spec={}), namespace)
    async with Listener(client.watch(widgets, namespace, resource_version=start)) as listener:
        initial = [await listener.next() for _ in range(2)]
        assert sorted(seen(initial)) == [("ADDED", "a"), ("ADDED", "b")]
        await client.delete(widgets, "a", namespace)
        assert seen([await listener.next()]) == [("DELETED", "a")]


async def test_every_event_has_kind_and_version(client: Client, namespace: str) -> None:
    start = await now(client, namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    for event in await take(client.watch(CONFIG_MAP, namespace, resource_version=start), 2):
        assert (event.object["kind"], event.object["apiVersion"]) == ("ConfigMap", "v1")


async def test_versions_increase_along_the_stream(client: Client, namespace: str) -> None:
    start = await now(client, namespace)
    for name in "abcde":
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), namespace)
    for name in "edcba":
        await client.delete(CONFIG_MAP, name, namespace)
    events = await take(client.watch(CONFIG_MAP, namespace, resource_version=start), 10)
    versions = [int(version(event.object)) for event in events]
    assert versions == sorted(set(versions))
    assert versions[0] > int(start)


async def test_deletion_event_has_the_last_state_with_a_new_version(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    [event] = await take(client.watch(CONFIG_MAP, namespace, resource_version=version(created)), 1)
    assert event.type == "DELETED"
    assert event.object["data"] == {"k": "v"}
    assert event.object["metadata"]["uid"] == created["metadata"]["uid"]
    assert int(version(event.object)) > int(version(created))


async def test_writes_without_changes_send_no_event(client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), namespace)
    await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "v"}}), namespace)
    await replace(client, CONFIG_MAP, created, namespace, fieldManager="sandpool")
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "end"), namespace)
    [event] = await take(client.watch(CONFIG_MAP, namespace, resource_version=version(created)), 1)
    assert seen([event]) == [("ADDED", "end")]


async def test_status_writes_send_an_event(client: Client, namespace: str, gadgets: ResourceType) -> None:
    created = await client.create(gadgets, new(gadgets, "a", spec={}), namespace)
    status = MergePatch({"status": {"n": 1}})
    patched = await client.patch(gadgets, "a", status, namespace, subresource="status")
    [event] = await take(client.watch(gadgets, namespace, resource_version=version(created)), 1)
    assert (event.type, event.object) == ("MODIFIED", patched)


async def test_deletion_with_finalizers_is_a_modification_first(client: Client, namespace: str) -> None:
    held = new(CONFIG_MAP, "a", metadata={"finalizers": ["example.com/hold"]})
    created = await client.create(CONFIG_MAP, held, namespace)
    await client.delete(CONFIG_MAP, "a", namespace)
    await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"finalizers": None}}), namespace)
    events = await take(client.watch(CONFIG_MAP, namespace, resource_version=version(created)), 2)
    assert seen(events) == [("MODIFIED", "a"), ("DELETED", "a")]
    assert events[0].object["metadata"]["deletionTimestamp"]


# What it shows


async def test_watch_is_limited_to_its_namespace(client: Client, namespace: str) -> None:
    other = namespace + "-other"
    await client.create(NAMESPACE, new(NAMESPACE, other))
    start = await now(client, namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "elsewhere"), other)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "here"), namespace)
    assert seen(await take(client.watch(CONFIG_MAP, namespace, resource_version=start), 1)) == [("ADDED", "here")]
    everywhere = client.watch(CONFIG_MAP, resource_version=start, field_selector="metadata.name!=kube-root-ca.crt")
    assert seen(await take(everywhere, 2)) == [("ADDED", "elsewhere"), ("ADDED", "here")]


async def test_watch_of_a_missing_namespace_sends_nothing(client: Client, namespace: str) -> None:
    assert await drain(client.watch(CONFIG_MAP, namespace + "-missing", timeout_seconds=1, allow_bookmarks=False)) == []


async def test_watch_is_limited_to_one_name(client: Client, namespace: str) -> None:
    start = await now(client, namespace)
    for name in "ab":
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), namespace)
    watch = client.watch(CONFIG_MAP, namespace, resource_version=start, field_selector="metadata.name=b")
    assert seen(await take(watch, 1)) == [("ADDED", "b")]


async def test_object_entering_or_leaving_a_selector_is_added_or_deleted(client: Client, namespace: str) -> None:
    """An object that starts to match appears as ADDED; one that stops matching as DELETED, in its last matching
    state, whatever happened to it really."""
    start = await now(client, namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", metadata={"labels": {"l": "no"}}), namespace)

    async def label(value: str | None) -> SharedObject:
        return await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"labels": {"l": value}}}), namespace)

    entered = await label("yes")
    changed = await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "v"}}), namespace)
    left = await label(None)
    await client.patch(CONFIG_MAP, "a", MergePatch({"data": {"k": "w"}}), namespace)
    await label("yes")
    await client.delete(CONFIG_MAP, "a", namespace)
    events = await take(client.watch(CONFIG_MAP, namespace, resource_version=start, label_selector="l=yes"), 5)
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    assert [event.object for event in events[:2]] == [entered, changed]
    gone = events[2].object
    assert gone["metadata"]["labels"] == {"l": "yes"}
    assert gone["data"] == {"k": "v"}
    assert version(gone) == version(left)


async def test_field_selectors_of_the_status_filter_a_watch(client: Client, namespace: str) -> None:
    start = await now(client, namespace, POD)
    await client.create(POD, pod("a", spec={"nodeName": "n1"}), namespace)
    await client.create(POD, pod("b"), namespace)
    running = MergePatch({"status": {"phase": "Running"}})
    for name in "ab":
        await client.patch(POD, name, running, namespace, subresource="status")
    watch = client.watch(POD, namespace, resource_version=start, field_selector="status.phase=Running")
    assert seen(await take(watch, 2)) == [("ADDED", "a"), ("ADDED", "b")]
    watch = client.watch(POD, namespace, resource_version=start, field_selector="spec.nodeName=n1")
    assert seen(await take(watch, 2)) == [("ADDED", "a"), ("MODIFIED", "a")]


# How it ends


async def test_watch_ends_after_its_timeout(client: Client, namespace: str) -> None:
    started = asyncio.get_running_loop().time()
    events = await drain(client.watch(CONFIG_MAP, namespace, timeout_seconds=1, field_selector="metadata.name=none"))
    assert [event.type for event in events] in ([], ["BOOKMARK"])
    assert asyncio.get_running_loop().time() - started >= 0.9


async def test_concurrent_watches_see_the_same_events(client: Client, namespace: str) -> None:
    start = await now(client, namespace)
    watches = [
        asyncio.create_task(take(client.watch(CONFIG_MAP, namespace, resource_version=start), 5)) for _ in "0" * 20
    ]
    for name in "abcde":
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), namespace)
    for watch in watches:
        assert seen(await watch) == [("ADDED", name) for name in "abcde"]


async def test_watch_from_an_old_version_is_expired(
    api: ApiEndpoint, client: Client, namespace: str, widgets: ResourceType
) -> None:
    await client.create(widgets, new(widgets, "a", spec={}), namespace)
    await api.forget_history()
    with pytest.raises(Expired) as refused:
        await drain(client.watch(widgets, namespace, resource_version="1", timeout_seconds=5))
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert refused.value.message.startswith("too old resource version: 1 (")


async def test_expired_watch_sends_an_error_event(
    api: ApiEndpoint, raw: Raw, client: Client, namespace: str, widgets: ResourceType
) -> None:
    await client.create(widgets, new(widgets, "a", spec={}), namespace)
    await api.forget_history()
    answer = await raw("GET", widgets.path(namespace) + "?watch=true&resourceVersion=1&timeoutSeconds=5")
    assert answer.status == 200
    [line] = answer.lines()
    assert line["type"] == "ERROR"
    assert {key: line["object"][key] for key in ("kind", "apiVersion", "status", "reason", "code")} == {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
    }


async def test_version_of_a_current_object_can_be_watched(
    client: Client, namespace: str, widgets: ResourceType
) -> None:
    created = await client.create(widgets, new(widgets, "a", spec={}), namespace)
    await client.delete(widgets, "a", namespace)
    assert seen(await take(client.watch(widgets, namespace, resource_version=version(created)), 1)) == [
        ("DELETED", "a")
    ]


async def test_watch_from_a_future_version_sends_nothing(client: Client, namespace: str) -> None:
    future = str(int(await now(client, namespace)) + 1_000_000)
    watch = client.watch(CONFIG_MAP, namespace, resource_version=future, timeout_seconds=1, allow_bookmarks=False)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    assert await drain(watch) == []


@pytest.mark.parametrize("bad", ["x", "-1"])
async def test_invalid_resource_version_is_rejected(client: Client, namespace: str, bad: str) -> None:
    with pytest.raises(ApiError, match=r"resourceVersion: Invalid value"):
        await drain(client.watch(CONFIG_MAP, namespace, resource_version=bad, timeout_seconds=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_selector": "a b"}, "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        (
            {"field_selector": "nope=1"},
            '"nope" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
    ],
)
async def test_invalid_selectors_are_rejected(
    client: Client, namespace: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await drain(client.watch(CONFIG_MAP, namespace, timeout_seconds=1, **options))
    assert refused.value.message == message


async def test_invalid_timeout_is_rejected(raw: Raw, namespace: str) -> None:
    answer = await raw("GET", CONFIG_MAP.path(namespace) + "?watch=true&timeoutSeconds=x")
    assert answer.status == 400


# On the wire


@pytest.mark.parametrize("flag", ["true", "True", "1"])
async def test_watch_sends_lines_of_json(raw: Raw, client: Client, namespace: str, flag: str) -> None:
    start = await now(client, namespace)
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    answer = await raw("GET", CONFIG_MAP.path(namespace) + f"?watch={flag}&resourceVersion={start}&timeoutSeconds=1")
    assert answer.status == 200
    assert answer.content_type == "application/json"
    assert answer.body.endswith(b"}\n")
    assert answer.lines()[0] == {"type": "ADDED", "object": created}


async def test_legacy_watch_paths_are_served(api: ApiEndpoint, raw: Raw, client: Client, namespace: str) -> None:
    start = await now(client, namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    query = f"?resourceVersion={start}&timeoutSeconds=1"
    for path in (
        f"/api/v1/watch/namespaces/{namespace}/configmaps",
        f"/api/v1/watch/namespaces/{namespace}/configmaps/a",
    ):
        answer = await raw("GET", path + query)
        assert [line["type"] for line in answer.lines()] == ["ADDED"]


async def test_watch_parameter_is_ignored_for_one_object(raw: Raw, client: Client, namespace: str) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    answer = await raw("GET", CONFIG_MAP.path(namespace, "a") + "?watch=true")
    assert answer.json() == created
