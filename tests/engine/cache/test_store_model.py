"""The cache against an API whose events, lists and answers arrive late and in any order that can happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandpool.api.resource import Key, Object
from sandpool.engine.cache.store import Cache, Listing, reads, version_of


class Thing(NamedTuple):
    uid: str
    value: int


@reads("value")
def value_of(view: Thing) -> tuple[int]:
    return (view.value,)


def thing(object: Object) -> Thing:
    return Thing(object["metadata"]["uid"], object["value"])


class Api:
    """The truth: objects by name, and every change in order."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, Object] = {}
        self.changes: list[tuple[str, Object]] = []

    def put(self, name: str, value: int) -> Object:
        self.version += 1
        before = self.objects.get(name)
        uid = before["metadata"]["uid"] if before else f"{name}-{self.version}"
        metadata = {"name": name, "uid": uid, "resourceVersion": str(self.version)}
        self.objects[name] = {"metadata": metadata, "value": value}
        self.changes.append(("MODIFIED" if before else "ADDED", self.objects[name]))
        return self.objects[name]

    def delete(self, name: str) -> Object:
        self.version += 1
        last = self.objects.pop(name)
        last = {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
        self.changes.append(("DELETED", last))
        return last


class CacheModel(RuleBasedStateMachine):
    names = st.sampled_from("abc")
    values = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.api = Api()
        self.cache = Cache(thing)
        self.cache.add_index("value", value_of)
        self.told: dict[Key, Thing] = {}  # what a handler believes that only follows what it is told
        self.cache.subscribe(self.follow)
        self.gone: set[str] = set()  # UIDs a handler has been told are gone
        self.position = 0  # version up to which the watch has brought everything
        self.listing: tuple[Listing[Thing], list[Object], int] | None = None  # what is left of it, and its version
        self.answers: list[Callable[[], None]] = []  # on their way to us

    def follow(self, key: Key, old: Thing | None, new: Thing | None) -> None:
        assert old != new
        assert self.told.get(key) == old
        if new is None:
            assert old is not None
            self.gone.add(old.uid)
            del self.told[key]
        else:
            assert new.uid not in self.gone, "a ghost"
            assert old is None or old.uid == new.uid
            self.told[key] = new

    # -- the world

    @rule(name=names, value=values)
    def others_write(self, name: str, value: int) -> None:
        self.api.put(name, value)

    @precondition(lambda self: self.api.objects)
    @rule(data=st.data())
    def others_delete(self, data: st.DataObject) -> None:
        self.api.delete(data.draw(st.sampled_from(sorted(self.api.objects))))

    # -- ourselves

    @rule(name=names, value=values)
    def we_write(self, name: str, value: int) -> None:
        object = self.api.put(name, value)

        def answer() -> None:
            self.cache.record_write(object)
            version = self.cache.version(Key("", name))
            is_there = name in self.api.objects and self.api.objects[name]["metadata"]["uid"] == thing(object).uid
            if is_there:
                assert version is not None, "a write is not read back"
                assert int(version) >= version_of(object)

        self.answers.append(answer)

    @precondition(lambda self: self.api.objects)
    @rule(data=st.data())
    def we_delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.api.objects)))
        uid = thing(self.api.delete(name)).uid

        def answer() -> None:
            self.cache.record_deletion(Key("", name), uid, {"kind": "Status"})
            view = self.cache.get(Key("", name))
            assert view is None or view.uid != uid, "a deletion is not read back"

        self.answers.append(answer)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))()

    # -- the watch

    @precondition(lambda self: self.listing is None and self.position < self.api.version)
    @rule()
    def an_event_arrives(self) -> None:
        type, object = self.api.changes[self.position]
        self.position += 1
        if type == "DELETED":
            self.cache.observe_deletion(object)
        else:
            self.cache.observe(object)

    @precondition(lambda self: self.listing is None and self.position == self.api.version)
    @rule()
    def a_bookmark_arrives(self) -> None:
        self.cache.observe_bookmark(self.position)

    @precondition(lambda self: self.listing is None)
    @rule()
    def a_list_begins(self) -> None:
        version = self.api.version
        self.listing = (self.cache.begin_list(version), list(self.api.objects.values()), version)

    @precondition(lambda self: self.listing is not None)
    @rule(count=st.integers(0, 3))
    def a_page_arrives(self, count: int) -> None:
        assert self.listing is not None
        listing, objects, version = self.listing
        for _ in range(min(count, len(objects))):
            listing.add(objects.pop())
        if not objects:
            listing.finish()
            self.position = version
            self.listing = None

    # -- what holds

    @invariant()
    def handlers_believe_what_the_cache_holds(self) -> None:
        names = [Key("", name) for name in "abc"]
        assert {key: view for key in names if (view := self.cache.get(key)) is not None} == self.told
        assert len(self.cache) == len(self.told)

    @invariant()
    def the_index_is_right(self) -> None:
        for value in range(3):
            found = {view.uid for view in self.cache.by_index("value", value)}
            assert found == {view.uid for view in self.told.values() if view.value == value}

    def teardown(self) -> None:
        """Once everything has arrived, the cache holds the truth."""
        while self.listing is not None:
            self.a_page_arrives(3)
        while self.answers:
            self.answers.pop(0)()
        while self.position < self.api.version:
            self.an_event_arrives()
        assert {key.name: view for key, view in self.told.items()} == {
            name: thing(object) for name, object in self.api.objects.items()
        }
        for name, object in self.api.objects.items():
            assert self.cache.version(Key("", name)) == object["metadata"]["resourceVersion"]


TestCacheModel = CacheModel.TestCase
TestCacheModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
