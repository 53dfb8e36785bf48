from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import pytest

from sandpool.api.resource import Key, Object
from sandpool.engine.cache.store import Cache, reads
from tests.support.mutation_detector import verify_all


@dataclass(frozen=True, slots=True)
class Thing:
    """The fields that the tests read: owner, spec and status."""

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
    """A handler that records its calls as ``name: before -> after`` of one attribute."""

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


def test_key_is_printed_as_namespace_and_name() -> None:
    assert str(Key("ns", "a")) == "ns/a"
    assert str(Key.of({"metadata": {"name": "node-1"}})) == "node-1"


def test_cache_holds_views_by_key() -> None:
    cache, log = cache_with()
    cache.observe(an("a", 5, spec="x"))
    assert cache.get(key("a")) == Thing("a", "uid-a", "", "x", "")
    assert cache.version(key("a")) == "5"
    assert key("a") in cache
    assert len(cache) == 1
    assert [view.name for view in cache] == ["a"]
    assert log.lines == ["a: - -> x"]


def test_unknown_key_is_not_in_the_cache() -> None:
    cache, _ = cache_with()
    assert cache.get(key("a")) is None
    assert cache.version(key("a")) is None
    assert key("a") not in cache


def test_update_calls_handlers_with_the_old_and_the_new_view() -> None:
    cache, log = cache_with(an("a", 1, spec="x"))
    cache.observe(an("a", 2, spec="y"))
    assert log.lines == ["a: x -> y"]


def test_r33_change_outside_the_view_calls_no_handler_and_keeps_the_view() -> None:
    cache, log = cache_with(an("a", 1, spec="x"))
    before = cache.get(key("a"))
    cache.observe(an("a", 2, spec="x"))
    assert cache.get(key("a")) is before
    assert cache.version(key("a")) == "2"
    assert log.lines == []


def test_r33_handler_is_called_only_for_changes_of_the_fields_it_reads() -> None:
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


def test_function_that_returns_the_declared_fields_is_not_called() -> None:
    @reads("owner", "spec", exactly=True)
    def owner_and_spec(view: Thing) -> tuple[str, str]:
        raise AssertionError("the cache has compared the fields")

    cache, _ = cache_with(an("a", 1))
    log = Log()
    cache.subscribe(log, on_change_of=owner_and_spec)
    assert log.take() == ["a: - -> "]
    cache.observe(an("a", 2, status="Running"))
    assert log.take() == []
    cache.observe(an("a", 3, spec="new"))
    cache.observe(an("a", 4, spec="new", owner="me"))
    assert log.take() == ["a:  -> new", "a: new -> new"]


def test_index_that_declares_its_fields_has_the_newest_view() -> None:
    @reads("owner")
    def by_owner(view: Thing) -> tuple[str, ...]:
        return (view.owner,) if view.owner else ()

    cache = Cache(thing, name="things")
    cache.add_index("owner", by_owner)
    cache.observe(an("a", 1, owner="me"))
    cache.observe(an("a", 2, owner="me", status="Running"))
    assert [view.status for view in cache.by_index("owner", "me")] == ["Running"]
    cache.observe(an("a", 3, owner="you", status="Running"))
    assert cache.by_index("owner", "me") == ()
    assert cache.by_index("owner", "you") == (cache.get(key("a")),)


def test_late_subscriber_is_called_for_every_cached_object() -> None:
    cache, _ = cache_with(an("a", 1, spec="x"), an("b", 2, spec="y"))
    late = Log()
    cache.subscribe(late)
    assert late.lines == ["a: - -> x", "b: - -> y"]


def test_failing_handler_is_logged_and_the_other_handlers_are_called(caplog: pytest.LogCaptureFixture) -> None:
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
def test_older_or_equal_version_is_ignored(version: int) -> None:
    cache, log = cache_with(an("a", 2, spec="new"))
    cache.observe(an("a", version, spec="old"))
    cache.record_write(an("a", version, spec="old"))
    view = cache.get(key("a"))
    assert view is not None
    assert view.spec == "new"
    assert log.lines == []


def test_versions_are_compared_as_numbers() -> None:
    cache, _ = cache_with(an("a", 9, spec="old"))
    cache.observe(an("a", 10, spec="new"))
    assert cache.version(key("a")) == "10"


def test_deletion_removes_the_object_once() -> None:
    cache, log = cache_with(an("a", 1, spec="x", owner="o"))
    cache.observe_deletion(an("a", 2, spec="x"))
    assert log.lines == ["a: x -> -"]
    assert len(cache) == 0
    assert cache.by_index("owner", "o") == ()
    cache.observe_deletion(an("a", 2))
    assert len(log.lines) == 1


def test_deletion_at_the_last_seen_version_removes_the_object() -> None:
    cache, _ = cache_with(an("a", 2))
    cache.observe_deletion(an("a", 2))
    assert len(cache) == 0


def test_object_with_the_same_name_and_another_uid_is_a_deletion_and_a_creation() -> None:
    cache, log = cache_with(an("a", 1, uid="first", spec="x"))
    cache.observe(an("a", 3, uid="second", spec="x"))
    assert log.lines == ["a: x -> -", "a: - -> x"]


# -- own writes -----------------------------------------------------------------------------------------------------


def test_r1_own_write_is_visible_before_its_event() -> None:
    cache, log = cache_with(an("a", 1, owner="pool"))
    cache.record_write(an("a", 5, owner="claim"))
    assert [view.name for view in cache.by_index("owner", "claim")] == ["a"]
    assert cache.by_index("owner", "pool") == ()
    assert cache.version(key("a")) == "5"
    assert len(log.take()) == 1
    cache.observe(an("a", 5, owner="claim"))
    assert log.lines == []


def test_own_creation_is_visible_before_its_event() -> None:
    cache, log = cache_with(an("other", 7))
    cache.record_write(an("a", 9, spec="x"))
    assert key("a") in cache
    cache.observe(an("a", 9, spec="x"))
    assert log.lines == ["a: - -> x"]


def test_events_of_several_own_writes_call_no_handler() -> None:
    cache, log = cache_with(an("a", 1))
    cache.record_write(an("a", 2, spec="x"))
    cache.record_write(an("a", 3, spec="y"))
    log.take()
    cache.observe(an("a", 2, spec="x"))
    cache.observe(an("a", 3, spec="y"))
    assert log.lines == []
    cache.observe(an("a", 4, spec="z"))
    assert log.lines == ["a: y -> z"]


def test_change_of_another_writer_in_the_response_calls_handlers() -> None:
    """The response to our status patch contains a spec that the cache had not seen, so its event changes nothing."""
    cache, _ = cache_with(an("a", 1, spec="run"))
    log = Log()
    cache.subscribe(log, on_change_of=lambda view: view.spec)
    log.take()
    cache.record_write(an("a", 3, spec="suspend", status="ours"))
    cache.observe(an("a", 2, spec="suspend"))
    cache.observe(an("a", 3, spec="suspend", status="ours"))
    assert log.lines == ["a: run -> suspend"]


def test_r39_response_after_the_deletion_does_not_restore_the_object() -> None:
    cache, log = cache_with(an("a", 1))
    cache.observe_deletion(an("a", 3))
    log.take()
    cache.record_write(an("a", 2, spec="x"))
    assert len(cache) == 0
    assert log.lines == []


def test_r39_response_older_than_a_bookmark_or_list_does_not_restore_the_object() -> None:
    cache, _ = cache_with()
    cache.observe_bookmark(10)
    cache.record_write(an("a", 9))
    cache.record_write(an("b", 11))
    assert key("a") not in cache
    assert key("b") in cache
    relist(cache, 20)
    cache.record_write(an("c", 19))
    assert key("c") not in cache


def test_deletion_of_the_predecessor_keeps_the_object_created_since() -> None:
    cache, log = cache_with(an("a", 1, uid="first", spec="x"))
    cache.record_write(an("a", 5, uid="second", spec="y"))
    assert log.take() == ["a: x -> -", "a: - -> y"]
    cache.observe_deletion(an("a", 4, uid="first"))
    assert log.lines == []
    assert key("a") in cache


# -- own deletions --------------------------------------------------------------------------------------------------

GONE: Object = {"kind": "Status", "status": "Success"}


def test_own_deletion_is_visible_before_its_event() -> None:
    cache, log = cache_with(an("a", 1, spec="x", owner="o"))
    cache.record_deletion(key("a"), "uid-a", GONE)
    assert len(cache) == 0
    assert cache.by_index("owner", "o") == ()
    assert log.take() == ["a: x -> -"]
    cache.observe_deletion(an("a", 2))
    assert log.lines == []


def test_events_from_before_an_own_deletion_do_not_restore_the_object() -> None:
    cache, log = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a", GONE)
    log.take()
    cache.observe(an("a", 2, spec="y"))
    cache.record_write(an("a", 3, spec="z"))
    assert len(cache) == 0
    assert log.lines == []


def test_deletion_that_found_nothing_removes_the_object() -> None:
    cache, _ = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a")
    assert len(cache) == 0


def test_deletion_delayed_by_a_finalizer_is_recorded_as_a_write() -> None:
    cache, log = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a", an("a", 2, status="terminating"))
    view = cache.get(key("a"))
    assert view is not None
    assert view.status == "terminating"
    cache.observe_deletion(an("a", 3))
    assert len(cache) == 0
    assert len(log.lines) == 2


def test_own_deletion_after_its_event_leaves_no_tombstone() -> None:
    cache, log = cache_with(an("a", 1))
    cache.observe_deletion(an("a", 2))
    log.take()
    cache.record_deletion(key("a"), "uid-a", GONE)
    assert not cache._deleted
    assert log.lines == []


def test_own_deletion_does_not_remove_a_successor() -> None:
    cache, _ = cache_with(an("a", 1, uid="first"))
    cache.observe(an("a", 3, uid="second"))
    cache.record_deletion(key("a"), "first", GONE)
    assert key("a") in cache


def test_successor_is_accepted_before_the_event_of_the_own_deletion() -> None:
    cache, _ = cache_with(an("a", 1, uid="first"))
    cache.record_deletion(key("a"), "first", GONE)
    cache.record_write(an("a", 4, uid="second"))
    cache.observe_deletion(an("a", 3, uid="first"))
    assert key("a") in cache
    assert not cache._deleted


# -- lists ----------------------------------------------------------------------------------------------------------


def test_object_missing_from_a_list_is_removed() -> None:
    cache, log = cache_with(an("a", 1, spec="x"), an("b", 2, spec="y"))
    relist(cache, 9, an("b", 5, spec="z"), an("c", 6, spec="c"))
    assert log.lines == ["b: y -> z", "c: - -> c", "a: x -> -"]


def test_object_written_after_the_list_began_stays() -> None:
    cache, log = cache_with(an("a", 1, spec="x"))
    listing = cache.begin_list(9)
    cache.record_write(an("a", 10, spec="ours"))
    cache.record_write(an("b", 11, spec="ours, too"))
    listing.add(an("a", 1, spec="x"))
    listing.finish()
    assert log.lines == ["a: x -> ours", "b: - -> ours, too"]
    assert len(cache) == 2


def test_object_deleted_after_the_list_began_stays_deleted() -> None:
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


def test_list_without_the_deleted_object_drops_its_tombstone() -> None:
    cache, _ = cache_with(an("a", 1))
    cache.record_deletion(key("a"), "uid-a", GONE)
    relist(cache, 9)
    assert not cache._deleted


def test_restarted_history_replaces_every_object(caplog: pytest.LogCaptureFixture) -> None:
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


def test_index_follows_every_change() -> None:
    cache, _ = cache_with(an("a", 1, owner="o"), an("b", 2, owner="o"), an("c", 3))
    assert [view.name for view in cache.by_index("owner", "o")] == ["a", "b"]
    cache.observe(an("a", 4, owner="p"))
    cache.observe(an("b", 5, owner="o", spec="new"))
    assert [view.spec for view in cache.by_index("owner", "o")] == ["new"]
    assert cache.count("owner", "p") == 1


def test_index_can_be_added_later() -> None:
    cache, _ = cache_with(an("a", 1, spec="x"))
    cache.add_index("spec", lambda view: (view.spec,))
    assert cache.count("spec", "x") == 1
    with pytest.raises(ValueError, match="things already have an index 'spec'"):
        cache.add_index("spec", lambda view: ())


def test_handler_sees_updated_indexes() -> None:
    cache, _ = cache_with(an("a", 1, owner="pool"))
    counts: list[tuple[int, int]] = []
    cache.subscribe(lambda key, old, new: counts.append((cache.count("owner", "pool"), cache.count("owner", "claim"))))
    cache.observe(an("a", 2, owner="claim"))
    cache.observe_deletion(an("a", 3))
    assert counts == [(1, 0), (0, 1), (0, 0)]


def test_view_that_one_index_rejects_changes_no_index() -> None:
    cache, log = cache_with(an("a", 1, owner="o"))
    cache.add_index("length", lambda view: (10 // len(view.owner),))
    with pytest.raises(ZeroDivisionError):
        cache.observe(an("a", 2, owner="", spec="new"))
    assert cache.version(key("a")) == "1"
    assert cache.count("owner", "o") == 1
    assert log.lines == []


# -- cost -----------------------------------------------------------------------------------------------------------


def test_r34_update_costs_the_same_with_100000_objects() -> None:
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


def test_older_list_does_not_restore_an_earlier_object_of_a_deleted_name() -> None:
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
