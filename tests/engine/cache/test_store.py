from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import pytest

from sandpool.api.resource import Object
from sandpool.engine.cache.store import Cache, Key
from sandpool.kube.mutation_detector import verify_all


@dataclass(frozen=True, slots=True)
class Thing:
    """What the tests read of an object: who owns it, what it should be and what it is."""

    name: str
    uid: str
    owner: str
    spec: str
    status: str


def thing(object: Object) -> Thing:
    metadata = object["metadata"]
    return Thing(metadata["name"], metadata["uid"], object["owner"], object["spec"], object["status"])


def an(name: str, version: int, *, uid: str = "", owner: str = "", spec: str = "", status: str = "") -> Object:
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "owner": owner, "spec": spec, "status": status, "noise": f"of version {version}"}


class Log:
    """A handler that writes down what it is told, as ``name: before -> after`` by one attribute."""

    def __init__(self, shows: str = "spec") -> None:
        self.shows = shows
        self.lines: list[str] = []

    def __call__(self, key: Key, old: Thing | None, new: Thing | None) -> None:
        before, after = (getattr(view, self.shows) if view is not None else "-" for view in (old, new))
        self.lines.append(f"{key.name}: {before} -> {after}")

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def key(name: str) -> Key:
    return Key("ns", name)


def cache_with(*objects: Object) -> tuple[Cache[Thing], Log]:
    cache = Cache(thing, name="things")
    cache.add_index("owner", lambda view: (view.owner,) if view.owner else ())
    for object in objects:
        cache.observe(object)
    log = Log()
    cache.subscribe(log)
    log.take()
    return cache, log


def relist(cache: Cache[Thing], version: int, *objects: Object) -> None:
    listing = cache.begin_list(version)
    for object in objects:
        listing.add(object)
    listing.finish()


# -- views ----------------------------------------------------------------------------------------------------------


def test_a_key_reads_as_people_write_it() -> None:
    assert str(Key("ns", "a")) == "ns/a"
    assert str(Key.of({"metadata": {"name": "node-1"}})) == "node-1"


def test_holds_views_by_key() -> None:
    cache, log = cache_with()
    cache.observe(an("a", 5, spec="x"))
    assert cache.get(key("a")) == Thing("a", "uid-a", "", "x", "")
    assert cache.version(key("a")) == "5"
    assert key("a") in cache
    assert len(cache) == 1
    assert [view.name for view in cache] == ["a"]
    assert log.lines == ["a: - -> x"]


def test_what_is_not_there() -> None:
    cache, _ = cache_with()
    assert cache.get(key("a")) is None
    assert cache.version(key("a")) is None
    assert key("a") not in cache


def test_an_update_tells_both_views() -> None:
    cache, log = cache_with(an("a", 1, spec="x"))
    cache.observe(an("a", 2, spec="y"))
    assert log.lines == ["a: x -> y"]


def test_r33_a_change_nobody_reads_wakes_nobody_and_keeps_the_view() -> None:
    cache, log = cache_with(an("a", 1, spec="x"))
    before = cache.get(key("a"))
    cache.observe(an("a", 2, spec="x"))
    assert cache.get(key("a")) is before
    assert cache.version(key("a")) == "2"
    assert log.lines == []


def test_r33_a_handler_is_woken_only_by_what_it_reads() -> None:
    cache, everything = cache_with(an("a", 1))
    spec = Log()
    cache.subscribe(spec, on_change_of=lambda view: view.spec)
    assert spec.take() == ["a: - -> "]
    cache.observe(an("a", 2, status="Pending"))
    cache.observe(an("a", 3, status="Running"))
    cache.observe(an("a", 4, status="Running", spec="new"))
    cache.observe_deletion(an("a", 5, status="Running", spec="new"))
    assert len(everything.lines) == 4
    assert spec.lines == ["a:  -> new", "a: new -> -"]


def test_who_comes_late_is_told_what_there_is() -> None:
    cache, _ = cache_with(an("a", 1, spec="x"), an("b", 2, spec="y"))
    late = Log()
    cache.subscribe(late)
    assert late.lines == ["a: - -> x", "b: - -> y"]


def test_a_handler_that_fails_is_seen_and_keeps_nobody_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(thing, name="things")

    def fail(key: Key, old: Thing | None, new: Thing | None) -> None:
        raise ZeroDivisionError

    log = Log()
    cache.subscribe(fail)
    cache.subscribe(log)
    with caplog.at_level(logging.ERROR):
        cache.observe(an("a", 1))
    assert "a handler failed on a change of things ns/a" in caplog.text
    assert log.lines == ["a: - -> "]


# -- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_or_equal_version_changes_nothing(version: int) -> None:
    cache, log = cache_with(an("a", 2, spec="new"))
    cache.observe(an("a", version, spec="old"))
    cache.record_write(an("a", version, spec="old"))
    view = cache.get(key("a"))
    assert view is not None
    assert view.spec == "new"
    assert log.lines == []


def test_versions_are_numbers() -> None:
    cache, _ = cache_with(an("a", 9, spec="old"))
    cache.observe(an("a", 10, spec="new"))
    assert cache.version(key("a")) == "10"


def test_a_deletion_removes() -> None:
    cache, log = cache_with(an("a", 1, spec="x", owner="o"))
    cache.observe_deletion(an("a", 2, spec="x"))
    assert log.lines == ["a: x -> -"]
    assert len(cache) == 0
    assert cache.by_index("owner", "o") == ()
    cache.observe_deletion(an("a", 2))
    assert len(log.lines) == 1


def test_a_deletion_at_the_version_last_seen_removes() -> None:
    cache, _ = cache_with(an("a", 2))
    cache.observe_deletion(an("a", 2))
    assert len(cache) == 0


def test_a_successor_of_the_same_name_is_another_object() -> None:
    cache, log = cache_with(an("a", 1, uid="first", spec="x"))
    cache.observe(an("a", 3, uid="second", spec="x"))
    assert log.lines == ["a: x -> -", "a: - -> x"]


# -- own writes -----------------------------------------------------------------------------------------------------


def test_r1_a_write_is_read_back_before_its_event_comes() -> None:
    cache, log = cache_with(an("a", 1, owner="pool"))
    cache.record_write(an("a", 5, owner="claim"))
    assert [view.name for view in cache.by_index("owner", "claim")] == ["a"]
    assert cache.by_index("owner", "pool") == ()
    assert cache.version(key("a")) == "5"
    assert len(log.take()) == 1
    cache.observe(an("a", 5, owner="claim"))
    assert log.lines == []


def test_a_created_object_is_there_before_its_event_comes() -> None:
    cache, log = cache_with(an("other", 7))
    cache.record_write(an("a", 9, spec="x"))
    assert key("a") in cache
    cache.observe(an("a", 9, spec="x"))
    assert log.lines == ["a: - -> x"]


def test_the_events_of_several_writes_wake_nobody() -> None:
    cache, log = cache_with(an("a", 1))
    cache.record_write(an("a", 2, spec="x"))
    cache.record_write(an("a", 3, spec="y"))
    log.take()
    cache.observe(an("a", 2, spec="x"))
    cache.observe(an("a", 3, spec="y"))
    assert log.lines == []
    cache.observe(an("a", 4, spec="z"))
    assert log.lines == ["a: y -> z"]


def test_another_writers_change_that_came_with_the_answer_is_told() -> None:
    """Our patch of the status was laid over a spec that we had not seen: its own event will be old news."""
    cache, _ = cache_with(an("a", 1, spec="run"))
    log = Log()
    cache.subscribe(log, on_change_of=lambda view: view.spec)
    log.take()
    cache.record_write(an("a", 3, spec="suspend", status="ours"))
    cache.observe(an("a", 2, spec="suspend"))
    cache.observe(an("a", 3, spec="suspend", status="ours"))
    assert log.lines == ["a: run -> suspend"]


def test_r39_an_answer_that_comes_after_the_objects_deletion_does_not_bring_it_back() -> None:
    cache, log = cache_with(an("a", 1))
    cache.observe_deletion(an("a", 3))
    log.take()
    cache.record_write(an("a", 2, spec="x"))
    assert len(cache) == 0
    assert log.lines == []


def test_r39_nor_after_a_bookmark_or_list_has_passed_it() -> None:
    cache, _ = cache_with()
    cache.observe_bookmark(10)
    cache.record_write(an("a", 9))
    cache.record_write(an("b", 11))
    assert key("a") not in cache
    assert key("b") in cache
    relist(cache, 20)
    cache.record_write(an("c", 19))
    assert key("c") not in cache


def test_the_deletion_of_the_predecessor_leaves_what_we_created_since() -> None:
    cache, log = cache_with(an("a", 1, uid="first", spec="x"))
    cache.record_write(an("a", 5, uid="second", spec="y"))
    assert log.take() == ["a: x -> -", "a: - -> y"]
    cache.observe_deletion(an("a", 4, uid="first"))
    assert log.lines == []
    assert key("a") in cache


# -- own deletions --------------------------------------------------------------------------------------------------

GONE: Object = {"kind": "Status", "status": "Success"}


def test_an_own_deletion_is_read_back_before_its_event_comes() -> None:
    cache, log = cache_with(an("a", 1, spec="x", owner="o"))
    cache.record_deletion(key("a"), "uid-a", GONE)
    assert len(cache) == 0
    assert cache.by_index("owner", "o") == ()
    assert log.take() == ["a: x -> -"]
    cache.observe_deletion(an("a", 2))
    assert log.lines == []


def test_events_from_before_an_own_deletion_do_not_bring_the_object_back() -> None:
    cache, log = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a", GONE)
    log.take()
    cache.observe(an("a", 2, spec="y"))
    cache.record_write(an("a", 3, spec="z"))
    assert len(cache) == 0
    assert log.lines == []


def test_what_was_not_found_is_gone() -> None:
    cache, _ = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a")
    assert len(cache) == 0


def test_a_deletion_that_something_holds_up_is_a_write() -> None:
    cache, log = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a", an("a", 2, status="terminating"))
    view = cache.get(key("a"))
    assert view is not None
    assert view.status == "terminating"
    cache.observe_deletion(an("a", 3))
    assert len(cache) == 0
    assert len(log.lines) == 2


def test_an_own_deletion_whose_event_was_faster_leaves_no_trace() -> None:
    cache, log = cache_with(an("a", 1))
    cache.observe_deletion(an("a", 2))
    log.take()
    cache.record_deletion(key("a"), "uid-a", GONE)
    assert not cache._deleted
    assert log.lines == []


def test_an_own_deletion_does_not_touch_a_successor() -> None:
    cache, _ = cache_with(an("a", 1, uid="first"))
    cache.observe(an("a", 3, uid="second"))
    cache.record_deletion(key("a"), "first", GONE)
    assert key("a") in cache


def test_a_successor_may_come_before_the_event_of_the_own_deletion() -> None:
    cache, _ = cache_with(an("a", 1, uid="first"))
    cache.record_deletion(key("a"), "first", GONE)
    cache.record_write(an("a", 4, uid="second"))
    cache.observe_deletion(an("a", 3, uid="first"))
    assert key("a") in cache
    assert not cache._deleted


# -- lists ----------------------------------------------------------------------------------------------------------


def test_what_a_list_does_not_contain_is_gone() -> None:
    cache, log = cache_with(an("a", 1, spec="x"), an("b", 2, spec="y"))
    relist(cache, 9, an("b", 5, spec="z"), an("c", 6, spec="c"))
    assert log.lines == ["b: y -> z", "c: - -> c", "a: x -> -"]


def test_what_was_written_after_the_list_was_made_stays() -> None:
    cache, log = cache_with(an("a", 1, spec="x"))
    listing = cache.begin_list(9)
    cache.record_write(an("a", 10, spec="ours"))
    cache.record_write(an("b", 11, spec="ours, too"))
    listing.add(an("a", 1, spec="x"))
    listing.finish()
    assert log.lines == ["a: x -> ours", "b: - -> ours, too"]
    assert len(cache) == 2


def test_what_we_deleted_after_the_list_was_made_stays_deleted() -> None:
    cache, _ = cache_with(an("a", 1), an("b", 2))
    cache.record_deletion(key("a"), "uid-a", GONE)
    listing = cache.begin_list(9)
    listing.add(an("a", 1))
    listing.add(an("b", 2))
    cache.record_deletion(key("b"), "uid-b", GONE)
    listing.finish()
    cache.observe(an("a", 10))
    cache.observe(an("b", 11))
    assert len(cache) == 0
    cache.observe_deletion(an("a", 12))
    cache.observe_deletion(an("b", 13))
    assert not cache._deleted


def test_a_list_without_what_we_deleted_ends_the_wait_for_its_event() -> None:
    cache, _ = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a", GONE)
    relist(cache, 9)
    assert not cache._deleted


def test_a_history_that_began_anew_replaces_everything(caplog: pytest.LogCaptureFixture) -> None:
    cache, log = cache_with(an("a", 500, spec="x"), an("b", 600), an("c", 700))
    cache.record_deletion(key("c"), "uid-c", GONE)
    log.take()
    with caplog.at_level(logging.WARNING):
        relist(cache, 20, an("a", 7, spec="restored"), an("c", 8))
    assert log.lines == ["a: x -> restored", "c: - -> ", "b:  -> -"]
    assert "the history of things was reset: listed at version 20 after 700" in caplog.text
    cache.observe(an("a", 21, spec="goes on"))
    assert cache.version(key("a")) == "21"


# -- indexes --------------------------------------------------------------------------------------------------------


def test_an_index_follows_every_change() -> None:
    cache, _ = cache_with(an("a", 1, owner="o"), an("b", 2, owner="o"), an("c", 3))
    assert [view.name for view in cache.by_index("owner", "o")] == ["a", "b"]
    cache.observe(an("a", 4, owner="p"))
    cache.observe(an("b", 5, owner="o", spec="new"))
    assert [view.spec for view in cache.by_index("owner", "o")] == ["new"]
    assert cache.count("owner", "p") == 1


def test_an_index_may_come_late() -> None:
    cache, _ = cache_with(an("a", 1, spec="x"))
    cache.add_index("spec", lambda view: (view.spec,))
    assert cache.count("spec", "x") == 1
    with pytest.raises(ValueError, match="things already have an index 'spec'"):
        cache.add_index("spec", lambda view: ())


def test_a_handler_finds_the_indexes_up_to_date() -> None:
    cache, _ = cache_with(an("a", 1, owner="pool"))
    counts: list[tuple[int, int]] = []
    cache.subscribe(lambda key, old, new: counts.append((cache.count("owner", "pool"), cache.count("owner", "claim"))))
    cache.observe(an("a", 2, owner="claim"))
    cache.observe_deletion(an("a", 3))
    assert counts == [(1, 0), (0, 1), (0, 0)]


def test_a_view_that_one_index_cannot_handle_is_in_none() -> None:
    cache, log = cache_with(an("a", 1, owner="o"))
    cache.add_index("length", lambda view: (10 // len(view.owner),))
    with pytest.raises(ZeroDivisionError):
        cache.observe(an("a", 2, owner="", spec="new"))
    assert cache.version(key("a")) == "1"
    assert cache.count("owner", "o") == 1
    assert log.lines == []


# -- cost -----------------------------------------------------------------------------------------------------------


def test_r34_an_update_costs_the_same_among_a_hundred_thousand() -> None:
    cache = Cache(thing)
    cache.add_index("owner", lambda view: (view.owner,))
    version = 0

    def fill(count: int) -> None:
        nonlocal version
        for number in range(len(cache), count):
            version += 1
            cache.observe(an(f"t{number}", version, owner="pool"))

    def seconds_per_update() -> float:
        nonlocal version
        objects = [an(f"t{n}", version + n + 1, owner=f"claim-{version + n}") for n in range(500)]
        start = time.process_time()
        for object in objects:
            cache.observe(object)
        seconds = (time.process_time() - start) / len(objects)
        version += 500
        return seconds

    fill(1_000)
    few = min(seconds_per_update() for _ in range(5))
    fill(100_000)
    assert min(seconds_per_update() for _ in range(5)) < 4 * few


def test_a_list_from_before_does_not_bring_back_an_earlier_object_of_a_name_we_deleted() -> None:
    cache, _ = cache_with(an("a", 1))
    listing = cache.begin_list(2)
    cache.record_write({**an("a", 5), "metadata": {**an("a", 5)["metadata"], "uid": "uid-second"}})
    cache.record_deletion(key("a"), "uid-second", GONE)
    listing.add(an("a", 1))
    listing.finish()
    assert len(cache) == 0


def test_consumer_that_changes_a_view_is_detected() -> None:
    cache: Cache[Object] = Cache(lambda shared: shared, name="things")
    shared = an("a", 1)
    cache.observe(shared)
    assert verify_all() == []
    found = cache.get(Key.of(shared))
    assert found is not None
    found["metadata"]["labels"] = {"mine": "yes"}
    (violation,) = verify_all()
    assert "things ns/a was changed by a consumer" in violation


def test_change_of_a_view_is_detected_when_the_object_is_deleted() -> None:
    cache: Cache[Object] = Cache(lambda shared: shared, name="things")

    def change(key: Key, old: Object | None, new: Object | None) -> None:
        if old is not None:
            old["spec"] = "mine"

    cache.subscribe(change)
    cache.observe(an("a", 1))
    cache.observe_deletion(an("a", 2))
    assert len(verify_all()) == 1
