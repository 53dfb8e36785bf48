from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandpool.e2b import watchers
from sandpool.e2b.rpc import Code, RpcError
from sandpool.e2b.watchers import Change, Watchers, WatchRequest, _translated
from sandpool.sdk.file_watch import FileEvent
from tests.e2b.conftest import Guest, Tenant, events

SERVICE = "filesystem.Filesystem"


async def fetched(guest: Guest, watcher: str, wanted: tuple[str, str]) -> list[tuple[str, str]]:
    """The events of a watcher until the wanted one is there."""
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(30):
        while wanted not in found:
            answer = await guest.call(f"{SERVICE}/GetWatcherEvents", watcherId=watcher)
            found += [(each["type"].removeprefix("EVENT_TYPE_"), each["name"]) for each in answer.document["events"]]
    return found


async def test_events_are_collected_until_they_are_fetched(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    (directory / "sub").mkdir()
    made = await guest.call(f"{SERVICE}/CreateWatcher", path=".")
    watcher = made.document["watcherId"]
    (directory / "sub" / "below").touch()
    (directory / "file").write_text("x")
    os.rename(directory / "file", directory / "moved")
    (directory / "moved").unlink()
    found = await fetched(guest, watcher, ("REMOVE", "moved"))
    assert [each for each in found if each[0] != "WRITE"] == [
        ("CREATE", "file"),
        ("RENAME", "file"),
        ("CREATE", "moved"),
        ("REMOVE", "moved"),
    ]
    assert (await guest.call(f"{SERVICE}/RemoveWatcher", watcherId=watcher)).status == 200
    for method in ("GetWatcherEvents", "RemoveWatcher"):
        assert (await guest.call(f"{SERVICE}/{method}", watcherId=watcher)).document["code"] == "not_found"


async def test_stream_reports_trees_and_describes_files(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    (directory / "sub").mkdir()
    asked = {"path": "", "recursive": True, "includeEntry": True}
    async with guest.open(f"{SERVICE}/WatchDir", asked) as response:
        following = events(response)
        assert await anext(following) == {"start": {}}
        (directory / "sub" / "file").write_text("x")
        created: Any = (await anext(following))["filesystem"]
    assert (created["type"], created["name"]) == ("EVENT_TYPE_CREATE", "sub/file")
    assert created["entry"]["path"] == str(directory / "sub/file")


async def test_watches_end_with_their_time_limit_and_are_limited(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    messages, error = await guest.stream(f"{SERVICE}/WatchDir", {"path": "."}, **{"Connect-Timeout-Ms": "500"})
    assert error["code"] == "deadline_exceeded"
    assert messages in ([], [{"start": {}}])  # a slow machine may not have begun
    for _ in range(2):
        assert (await guest.call(f"{SERVICE}/CreateWatcher", path=".")).status == 200
    assert (await guest.call(f"{SERVICE}/CreateWatcher", path=".")).document["code"] == "resource_exhausted"


async def test_only_directories_are_watched(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    (directory / "file").touch()
    for path, code in (("none", "not_found"), ("file", "invalid_argument")):
        assert (await guest.call(f"{SERVICE}/CreateWatcher", path=path)).document["code"] == code
        _, error = await guest.stream(f"{SERVICE}/WatchDir", {"path": path})
        assert error["code"] == code


def test_moves_are_reported_at_the_ends_that_are_watched() -> None:
    moved = FileEvent("moved", "d/new", source="old")
    assert list(_translated(moved, recursive=False)) == [Change("RENAME", "old")]
    assert list(_translated(moved, recursive=True)) == [Change("RENAME", "old"), Change("CREATE", "d/new")]
    assert list(_translated(FileEvent("news", "x"), recursive=True)) == []
    with pytest.raises(RpcError, match="too many"):
        list(_translated(FileEvent("overflow", "."), recursive=True))


async def test_long_names_that_are_not_fetched_end_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    async def changes(running: object, request: WatchRequest) -> AsyncIterator[Change | None]:
        nonlocal sent
        yield None
        while sent < 1000:
            sent += 1
            yield Change("CREATE", "x" * (700 << 10))

    monkeypatch.setattr(watchers, "changes", changes)
    kept = Watchers(cast(Any, SimpleNamespace(id="box")), 1)
    watcher = await kept.create(WatchRequest("."))
    await asyncio.sleep(0)
    with pytest.raises(RpcError) as refused:
        kept.events(watcher)
    assert (refused.value.code, sent) == (Code.RESOURCE_EXHAUSTED, 2)
