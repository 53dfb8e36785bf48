"""Bookmarks, and watches that begin with the whole state: sendInitialEvents."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import SECRET
from sandpool.kube.client import Client
from sandpool.kube.errors import Invalid
from sandpool.testing.objects import new
from sandpool.testing.waiting import Listener, drain
from tests.support.api_access import Raw

END = "k8s.io/initial-events-end"


async def test_initial_events_end_with_a_bookmark_followed_by_changes(client: Client, namespace: str) -> None:
    for name in "ab":
        await client.create(SECRET, new(SECRET, name), namespace)
    before = await client.list(SECRET, namespace)
    watch = client.watch(SECRET, namespace, send_initial_events=True, resource_version_match=r"NotOlderThan")
    async with Listener(watch, bookmarks=True) as listener:
        initial = [await listener.next() for _ in range(2)]
        assert sorted((event.type, event.object["metadata"]["name"]) for event in initial) == [
            ("ADDED", "a"),
            ("ADDED", "b"),
        ]
        end = await listener.next()
        assert end.type == "BOOKMARK"
        assert end.object["metadata"]["annotations"] == {END: "true"}
        assert int(end.object["metadata"]["resourceVersion"]) >= int(before["metadata"]["resourceVersion"])
        await client.create(SECRET, new(SECRET, "c"), namespace)
        live = await listener.next()
        while live.type == "BOOKMARK":
            assert END not in live.object["metadata"].get("annotations", {})
            live = await listener.next()
        assert (live.type, live.object["metadata"]["name"]) == ("ADDED", "c")


async def test_bookmark_has_kind_and_version_only(client: Client, namespace: str) -> None:
    watch = client.watch(SECRET, namespace, send_initial_events=True, timeout_seconds=5)
    async with Listener(watch, bookmarks=True) as listener:
        end = await listener.next()
    assert (end.type, end.object["kind"], end.object["apiVersion"]) == ("BOOKMARK", "Secret", "v1")
    assert {key for key, value in end.object["metadata"].items() if value} == {"resourceVersion", "annotations"}
    assert end.object.keys() == {"kind", "apiVersion", "metadata"}


async def test_watch_resumes_from_a_bookmark(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    async with Listener(client.watch(SECRET, namespace, send_initial_events=True), bookmarks=True) as listener:
        await listener.next()
        end = await listener.next()
    await client.create(SECRET, new(SECRET, "b"), namespace)
    version = end.object["metadata"]["resourceVersion"]
    async with Listener(client.watch(SECRET, namespace, resource_version=version)) as listener:
        assert (await listener.next()).object["metadata"]["name"] == "b"


async def test_initial_events_are_not_older_than_the_requested_version(client: Client, namespace: str) -> None:
    created = await client.create(SECRET, new(SECRET, "a"), namespace)
    version = created["metadata"]["resourceVersion"]
    watch = client.watch(SECRET, namespace, send_initial_events=True, resource_version=version)
    async with Listener(watch, bookmarks=True) as listener:
        assert (await listener.next()).object == created
        end = await listener.next()
        assert end.type == "BOOKMARK"
        assert int(end.object["metadata"]["resourceVersion"]) >= int(version)


async def test_initial_events_honour_a_selector(client: Client, namespace: str) -> None:
    for name in "ab":
        await client.create(SECRET, new(SECRET, name, metadata={"labels": {"n": name}}), namespace)
    watch = client.watch(SECRET, namespace, send_initial_events=True, label_selector="n=b")
    async with Listener(watch, bookmarks=True) as listener:
        events = [await listener.next() for _ in range(2)]
    assert [(event.type, event.object["metadata"].get("name")) for event in events] == [
        ("ADDED", "b"),
        ("BOOKMARK", None),
    ]


async def test_initial_events_without_bookmarks_have_no_end_mark(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    watch = client.watch(SECRET, namespace, send_initial_events=True, allow_bookmarks=False, timeout_seconds=1)
    assert [event.type for event in await drain(watch)] == ["ADDED"]


async def test_watch_without_bookmarks_sends_none(client: Client, namespace: str) -> None:
    version = (await client.list(SECRET, namespace))["metadata"]["resourceVersion"]
    watch = client.watch(SECRET, namespace, resource_version=version, allow_bookmarks=False, timeout_seconds=2)
    assert await drain(watch) == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "watch=true&sendInitialEvents=true",
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (
            "watch=true&resourceVersion=5&resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is "
            "provided",
        ),
        (
            "sendInitialEvents=true&resourceVersion=5&resourceVersionMatch=NotOlderThan",
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        ),
    ],
)
async def test_conflicting_watch_options_are_rejected(raw: Raw, namespace: str, query: str, message: str) -> None:
    answer = await raw("GET", SECRET.path(namespace) + f"?timeoutSeconds=1&{query}")
    assert answer.status == 422
    assert answer.json()["message"] == f'ListOptions.meta.k8s.io "" is invalid: {message}'


async def test_other_resource_version_match_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match=r"resourceVersionMatch: Unsupported value"):
        await drain(
            client.watch(
                SECRET, namespace, send_initial_events=True, resource_version_match=r"Exact", resource_version="5"
            )
        )
