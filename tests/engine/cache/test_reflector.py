"""The reflector against a scripted API and a manual clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Key, Object
from sandpool.engine.cache.reflector import SILENCE, Reflector
from sandpool.engine.cache.store import Cache
from sandpool.kube.client import Client
from sandpool.kube.errors import Expired, Forbidden, InternalError, TooManyRequests
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock


class ScriptedWatch:
    """One open watch whose events the test sends."""

    def __init__(self, request: Request) -> None:
        self.version = request.query.get("resourceVersion")
        self.query = request.query
        self.closed = False
        self.lines: asyncio.Queue[WatchEvent | BaseException | None] = asyncio.Queue()

    def send(self, type: str, object: Object) -> None:
        self.lines.put_nowait(WatchEvent(type, object))

    def bookmark(self, version: int) -> None:
        self.send("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})

    def fail(self, error: BaseException) -> None:
        self.lines.put_nowait(error)

    def end(self) -> None:
        self.lines.put_nowait(None)


class ScriptedApi:
    """Lists show ``objects`` at ``version``. ``on_list`` and ``on_watch`` may raise, or prepare a watch."""

    def __init__(self, objects: Iterable[Object] = (), version: int = 1) -> None:
        self.objects = list(objects)
        self.version = version
        self.lists: list[Request] = []
        self.watches: list[ScriptedWatch] = []
        self.on_list: Callable[[Request], object] = lambda request: None
        self.on_watch: Callable[[ScriptedWatch], object] = lambda watch: None
        self.hang = asyncio.Event()  # lists wait for it
        self.hang.set()

    def client(self) -> Client:
        return Client(self)

    @property
    def watch(self) -> ScriptedWatch:
        """The one opened last."""
        return self.watches[-1]

    async def request(self, request: Request) -> Any:
        self.lists.append(request)
        await self.hang.wait()
        self.on_list(request)
        start = int(request.query.get("continue", "0"))
        end = start + int(request.query.get("limit", "1000000"))
        metadata = {"resourceVersion": str(self.version)}
        if end < len(self.objects):
            metadata["continue"] = str(end)
        return {"kind": "List", "metadata": metadata, "items": self.objects[start:end] or None}

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        watch = ScriptedWatch(request)
        self.watches.append(watch)
        try:
            self.on_watch(watch)
            while (line := await watch.lines.get()) is not None:
                if isinstance(line, BaseException):
                    raise line
                yield line
        finally:
            watch.closed = True

    async def close(self) -> None:
        for watch in self.watches:
            watch.end()


def an(name: str, version: int, value: str = "") -> Object:
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "data": {"value": value}}


def value(object: Object) -> str:
    found = object["data"]["value"]
    assert isinstance(found, str), "not a value"
    return found


class Rig:
    """A reflector at work, its clock, and what its cache was told."""

    def __init__(self, api: ScriptedApi, **options: Any) -> None:
        self.api = api
        self.clock = ManualClock()
        self.cache = Cache(value, name="config maps")
        self.log: list[str] = []
        self.cache.subscribe(lambda key, old, new: self.log.append(f"{key.name}: {old} -> {new}"))
        self.reflector = Reflector(api.client(), CONFIG_MAP, self.cache, self.clock, Random(1), **options)

    def value(self, name: str) -> str | None:
        return self.cache.get(Key("ns", name))


@asynccontextmanager
async def running(api: ScriptedApi, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(api, **options)
    task = asyncio.create_task(rig.reflector.run())
    try:
        await rig.clock.settle()
        yield rig
        assert not task.done(), "a reflector never ends by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert all(watch.closed for watch in api.watches)


# -- when all is well -----------------------------------------------------------------------------------------------


async def test_reflector_lists_and_then_watches_from_the_list_version() -> None:
    api = ScriptedApi([an("a", 3, "x"), an("b", 5, "y")], version=7)
    async with running(api, namespace="ns", label_selector="l=1", field_selector="metadata.name!=c") as rig:
        assert rig.reflector.synced.is_set()
        assert rig.log == ["a: None -> x", "b: None -> y"]
        query = api.watch.query
        assert api.lists[0].path == "/api/v1/namespaces/ns/configmaps"
        assert (query["resourceVersion"], query["allowWatchBookmarks"]) == ("7", "true")
        assert (query["labelSelector"], query["fieldSelector"]) == ("l=1", "metadata.name!=c")
        assert 300 <= int(query["timeoutSeconds"]) <= 600
        api.watch.send("ADDED", an("c", 8, "z"))
        api.watch.send("MODIFIED", an("a", 9, "X"))
        api.watch.send("DELETED", an("b", 10, "y"))
        await rig.clock.settle()
        assert rig.log[2:] == ["c: None -> z", "a: x -> X", "b: y -> None"]
        assert (rig.reflector.lists, rig.reflector.watches, rig.reflector.failures) == (1, 1, 0)


async def test_reflector_lists_in_pages() -> None:
    api = ScriptedApi([an(f"o{number}", number + 1) for number in range(5)], version=9)
    async with running(api, page_size=2) as rig:
        assert [request.query.get("continue") for request in api.lists] == [None, "2", "4"]
        assert len(rig.cache) == 5
        assert api.watch.version == "9"


async def test_reflector_is_not_synced_before_the_last_page() -> None:
    api = ScriptedApi([an("a", 1), an("b", 2)])

    def only_the_first_page(request: Request) -> None:
        if "continue" in request.query:
            raise ConnectionError("lost")

    api.on_list = only_the_first_page
    async with running(api, page_size=1) as rig:
        assert not rig.reflector.synced.is_set()
        api.on_list = lambda request: None
        await rig.clock.advance(5)
        assert rig.reflector.synced.is_set()


async def test_reflector_syncs_on_an_empty_list() -> None:
    async with running(ScriptedApi(version=4)) as rig:
        assert rig.reflector.synced.is_set()
        assert rig.api.watch.version == "4"


async def test_age_is_the_time_since_the_last_watch_message() -> None:
    async with running(ScriptedApi()) as rig:
        assert rig.reflector.age() == 0
        await rig.clock.advance(40)
        assert rig.reflector.age() == 40
        rig.api.watch.bookmark(5)
        await rig.clock.settle()
        assert rig.reflector.age() == 0


async def test_list_resets_the_age() -> None:
    api = ScriptedApi()
    api.hang.clear()
    async with running(api) as rig:
        await rig.clock.advance(40)
        assert rig.reflector.age() == 40
        api.hang.set()
        await rig.clock.settle()
        assert rig.reflector.age() == 0


async def test_r39_write_older_than_a_bookmark_is_ignored() -> None:
    async with running(ScriptedApi(version=7)) as rig:
        rig.api.watch.bookmark(50)
        await rig.clock.settle()
        rig.cache.record_write(an("deleted since", 49))
        assert len(rig.cache) == 0


async def test_r36_watch_that_ends_is_resumed_at_the_last_version() -> None:
    async with running(ScriptedApi(version=7)) as rig:
        rig.api.watch.send("ADDED", an("a", 9, "x"))
        await rig.clock.advance(100)
        rig.api.watch.end()
        await rig.clock.settle()
        assert [watch.version for watch in rig.api.watches] == ["7", "9"]
        await rig.clock.advance(100)
        rig.api.watch.bookmark(50)
        rig.api.watch.end()
        await rig.clock.settle()
        assert rig.api.watch.version == "50"
        assert (len(rig.api.lists), rig.reflector.failures) == (1, 0)


async def test_reflector_yields_to_other_tasks_during_a_burst_of_events() -> None:
    async with running(ScriptedApi()) as rig:
        for version in range(2, 1002):
            rig.api.watch.send("MODIFIED", an("a", version, str(version)))
        turns = 0
        while len(rig.log) < 1000:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 10


async def test_cancelled_reflector_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with running(ScriptedApi()):
        assert len(asyncio.all_tasks()) == len(before) + 3
    assert asyncio.all_tasks() == before


# -- when the watch does not work -----------------------------------------------------------------------------------


async def test_r36_broken_watch_is_resumed_at_the_last_version_after_a_pause() -> None:
    async with running(ScriptedApi(version=7)) as rig:
        rig.api.watch.send("ADDED", an("a", 9, "x"))
        rig.api.watch.fail(ConnectionError("reset by peer"))
        await rig.clock.settle()
        assert len(rig.api.watches) == 1
        await rig.clock.advance(0.1)
        assert rig.api.watch.version == "9"
        rig.api.watch.send("MODIFIED", an("a", 10, "y"))
        await rig.clock.settle()
        assert rig.value("a") == "y"
        assert (len(rig.api.lists), rig.reflector.failures) == (1, 1)


async def test_watch_that_ends_normally_resets_the_backoff(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(ScriptedApi()) as rig:
        rig.api.watch.fail(ConnectionError("reset by peer"))
        await rig.clock.advance(60)
        rig.api.watch.end()
        await rig.clock.settle()
    assert caplog.messages[1:] == ["reflecting configmaps works again after 1 failures"]


async def test_r36_half_open_watch_is_replaced() -> None:
    async with running(ScriptedApi(version=7)) as rig:
        await rig.clock.advance(SILENCE - 1)
        assert [watch.closed for watch in rig.api.watches] == [False]
        await rig.clock.advance(1.2)
        assert [watch.closed for watch in rig.api.watches] == [True, False]
        assert rig.api.watch.version == "7"
        assert len(rig.api.lists) == 1


async def test_r36_events_keep_a_watch_alive() -> None:
    async with running(ScriptedApi()) as rig:
        for version in range(2, 30):
            await rig.clock.advance(SILENCE - 1)
            rig.api.watch.send("ADDED", an("a", version))
        assert len(rig.api.watches) == 1


async def test_r36_bookmarks_alone_keep_a_watch_alive_for_an_hour() -> None:
    async with running(ScriptedApi(version=100)) as rig:
        for minute in range(60):
            await rig.clock.advance(60)
            assert rig.reflector.age() <= 60
            rig.api.watch.bookmark(101 + minute)
        rig.api.watch.end()
        await rig.clock.settle()
        assert [watch.version for watch in rig.api.watches] == ["100", "160"]
        assert (len(rig.api.lists), rig.reflector.failures) == (1, 0)


async def test_r36_watch_without_events_for_an_hour_still_works() -> None:
    async with running(ScriptedApi([an("a", 1, "x")], version=7)) as rig:
        await rig.clock.advance(3600)
        assert 3600 / SILENCE / 2 < len(rig.api.watches) <= 3600 / SILENCE + 1
        assert 2 <= len(rig.api.lists) <= 3600 / SILENCE / 3 + 1
        rig.api.watch.send("MODIFIED", an("a", 8, "y"))
        await rig.clock.settle()
        assert rig.log == ["a: None -> x", "a: x -> y"]


async def test_r36_watch_that_ends_at_once_is_reopened_with_backoff() -> None:
    api = ScriptedApi()
    api.on_watch = ScriptedWatch.end
    async with running(api) as rig:
        await rig.clock.advance(600)
        assert 10 < len(api.watches) < 40
        api.on_watch = lambda watch: None
        await rig.clock.advance(60)
        api.watch.send("ADDED", an("a", 8, "x"))
        await rig.clock.settle()
        assert rig.value("a") == "x"


async def test_r36_watch_that_ends_after_one_bookmark_is_reopened_with_backoff() -> None:
    api = ScriptedApi()

    def bookmark_and_end(watch: ScriptedWatch) -> None:
        watch.bookmark(len(api.watches) + 1)
        watch.end()

    api.on_watch = bookmark_and_end
    async with running(api) as rig:
        await rig.clock.advance(600)
        assert 10 < len(api.watches) < 40


async def test_r36_refused_watch_is_retried_from_the_same_version() -> None:
    api = ScriptedApi(version=7)
    api.on_watch = lambda watch: watch.fail(InternalError("etcd leader changed"))
    async with running(api) as rig:
        await rig.clock.advance(0.1)
        api.on_watch = lambda watch: None
        await rig.clock.advance(5)
        assert {watch.version for watch in api.watches} == {"7"}
        assert len(api.watches) == 3
        assert len(api.lists) == 1


async def test_r36_cancellation_by_the_transport_does_not_end_the_reflector() -> None:
    async with running(ScriptedApi()) as rig:
        rig.api.watch.fail(asyncio.CancelledError())
        await rig.clock.advance(1)
        assert len(rig.api.watches) == 2
        assert rig.reflector.failures == 1


async def test_r37_expired_version_causes_a_relist() -> None:
    async with running(ScriptedApi([an("a", 1, "x"), an("b", 2, "y")], version=7)) as rig:
        rig.api.watch.fail(Expired("too old resource version: 7 (20)"))
        rig.api.objects, rig.api.version = [an("a", 15, "X"), an("c", 18, "z")], 20
        await rig.clock.advance(2)
        assert [watch.version for watch in rig.api.watches] == ["7", "20"]
        assert rig.log[2:] == ["a: x -> X", "c: None -> z", "b: y -> None"]


async def test_r37_repeated_expired_versions_cause_relists_with_growing_backoff() -> None:
    api = ScriptedApi()
    api.on_watch = lambda watch: watch.fail(Expired("too old"))
    async with running(api) as rig:
        await rig.clock.advance(60)
        early = len(api.lists)
        assert 5 < early < 20
        await rig.clock.advance(600)
        assert len(api.lists) - early < 45
        assert len(api.lists) - len(api.watches) in (0, 1)
        api.on_watch = lambda watch: None
        await rig.clock.advance(60)
        assert not api.watch.closed


async def test_r23_reflectors_that_expire_together_relist_at_different_times() -> None:
    times = set()
    for seed in range(20):
        api = ScriptedApi()
        async with running(api) as rig:
            rig.reflector.rng.seed(seed)
            api.watch.fail(Expired("too old"))
            await rig.clock.settle()
            while len(api.lists) < 2:
                await rig.clock.jump()
            times.add(round(rig.clock.monotonic(), 2))
    assert len(times) > 15
    assert max(times) - min(times) > 0.5


@pytest.mark.parametrize(
    "type, object",
    [
        ("ADDED", {"metadata": {"name": "a"}}),
        ("ADDED", {"metadata": {"resourceVersion": "8"}}),
        ("ADDED", {"metadata": {"name": "a", "resourceVersion": "?"}}),
        ("MODIFIED", {}),
        ("DELETED", {"metadata": None}),
        ("BOOKMARK", {"kind": "ConfigMap"}),
        ("CHANGED", an("a", 8)),
    ],
)
async def test_malformed_event_causes_a_relist(type: str, object: Object) -> None:
    async with running(ScriptedApi(version=7)) as rig:
        rig.api.watch.send(type, object)
        rig.api.objects, rig.api.version = [an("a", 8, "x")], 8
        await rig.clock.advance(2)
        assert rig.api.watch.version == "8"
        assert rig.value("a") == "x"


async def test_event_that_always_breaks_the_watch_is_skipped_by_a_relist() -> None:
    api = ScriptedApi(version=7)

    def break_at_seven(watch: ScriptedWatch) -> None:
        if watch.version == "7":
            watch.fail(ConnectionError("a line is not an event"))

    api.on_watch = break_at_seven
    async with running(api) as rig:
        api.version = 8
        await rig.clock.advance(5)
        assert [watch.version for watch in api.watches] == ["7", "7", "7", "8"]


async def test_version_older_than_the_last_one_causes_a_relist() -> None:
    async with running(ScriptedApi([an("a", 500, "x")], version=700)) as rig:
        rig.api.objects, rig.api.version = [an("a", 8, "restored")], 20
        rig.api.watch.bookmark(20)
        await rig.clock.advance(2)
        assert rig.api.watch.version == "20"
        assert rig.value("a") == "restored"


# -- when the list does not work ------------------------------------------------------------------------------------


def fail_with(error: Exception) -> Callable[[Request], None]:
    def fail(request: Request) -> None:
        raise error

    return fail


async def test_failed_list_is_retried_and_the_cache_keeps_its_objects(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    api = ScriptedApi([an("a", 1, "x")], version=7)
    async with running(api) as rig:
        api.on_list = fail_with(ConnectionError("connection refused"))
        api.watch.fail(Expired("too old"))
        await rig.clock.advance(3600)
        assert rig.value("a") == "x"
        assert 100 < len(api.lists) < 250
        failures = rig.reflector.failures
        assert failures == len(api.lists)
        api.on_list = lambda request: None
        await rig.clock.advance(60)
        api.watch.bookmark(9)
        await rig.clock.settle()
    assert [record.message for record in caplog.records] == [
        "reflecting configmaps failed: too old; listing again",
        "reflecting configmaps failed: connection refused; listing again",
        f"reflecting configmaps works again after {failures} failures",
    ]


async def test_list_without_response_times_out() -> None:
    api = ScriptedApi()
    api.hang.clear()
    async with running(api) as rig:
        await rig.clock.advance(SILENCE + 2)
        assert (len(api.lists), rig.reflector.failures) == (2, 1)
        api.hang.set()
        await rig.clock.settle()
        assert rig.reflector.synced.is_set()


async def test_expired_continue_token_causes_a_list_without_pages() -> None:
    api = ScriptedApi([an("a", 1), an("b", 2), an("c", 3)])

    def expire(request: Request) -> None:
        if "continue" in request.query:
            raise Expired("the provided continue parameter is too old")

    api.on_list = expire
    async with running(api, page_size=2) as rig:
        await rig.clock.advance(2)
        assert [request.query.get("limit") for request in api.lists] == ["2", "2", None]
        assert len(rig.cache) == 3
        api.on_list = lambda request: None
        api.watch.fail(Expired("too old"))
        await rig.clock.advance(2)
        assert [request.query.get("limit") for request in api.lists[3:]] == ["2", "2"]


async def test_retry_after_of_the_server_is_honoured() -> None:
    api = ScriptedApi()
    api.on_list = fail_with(TooManyRequests("slow down", details={"retryAfterSeconds": 20}))
    async with running(api) as rig:
        await rig.clock.advance(19.9)
        assert len(api.lists) == 1
        await rig.clock.advance(1.2)
        assert len(api.lists) == 2


async def test_forbidden_list_is_retried_until_it_is_allowed() -> None:
    api = ScriptedApi()
    api.on_list = fail_with(Forbidden("configmaps is forbidden"))
    async with running(api) as rig:
        await rig.clock.advance(300)
        assert not rig.reflector.synced.is_set()
        api.on_list = lambda request: None
        await rig.clock.advance(40)
        assert rig.reflector.synced.is_set()


# -- when our own code does not work --------------------------------------------------------------------------------


async def test_object_that_cannot_be_decoded_does_not_block_the_others(caplog: pytest.LogCaptureFixture) -> None:
    poison: Any = 5
    async with running(ScriptedApi([an("a", 1, poison), an("b", 2, "y")], version=7)) as rig:
        assert rig.reflector.synced.is_set()
        assert rig.log == ["b: None -> y"]
        rig.api.watch.send("MODIFIED", an("b", 8, poison))
        rig.api.watch.send("ADDED", an("c", 9, "z"))
        await rig.clock.settle()
        assert rig.log[1:] == ["c: None -> z"]
        assert rig.value("b") == "y"
        assert (rig.reflector.unreadable, rig.reflector.failures) == (2, 0)
    assert "could not read configmaps a;" in caplog.text
    assert "not a value" in caplog.text


async def test_exception_in_a_handler_is_logged_and_does_not_end_the_reflector(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = ScriptedApi()
    api.on_watch = lambda watch: watch.fail(ZeroDivisionError())
    async with running(api) as rig:
        await rig.clock.advance(60)
        api.on_watch = lambda watch: None
        await rig.clock.advance(60)
        assert not api.watch.closed
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in errors] == ["reflecting configmaps failed: ZeroDivisionError; listing again"]
    assert errors[0].exc_info
