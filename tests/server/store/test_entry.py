from __future__ import annotations

import tracemalloc

import orjson
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.resource import Key
from sandpool.server.store.entry import Entry, encode

names = st.text(max_size=8)
references = st.lists(st.fixed_dictionaries({"uid": names}, optional={"kind": names, "controller": st.booleans()}))
objects = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": names},
            optional={
                "uid": names,
                "labels": st.dictionaries(names, names) | st.none(),
                "ownerReferences": references | st.none(),
                "annotations": st.dictionaries(names, names),
            },
        )
    },
    optional={"spec": st.recursive(st.none() | st.integers() | names, st.lists, max_leaves=5)},
)


@given(objects)
def test_entry_is_equal_from_object_and_bytes(obj: dict[str, object]) -> None:
    encoded = orjson.dumps(obj)
    made, read = Entry.of(Key("ns", "n"), 3, 7, obj, encoded), Entry.stored(Key("ns", "n"), 3, 7, encoded)
    assert (made.uid, made.labels, made.owners) == (read.uid, read.labels, read.owners)
    assert (read.key, read.revision, read.row, read.decode()) == (("ns", "n"), 3, 7, obj)


def test_kept_object_is_returned_as_is() -> None:
    obj = {"metadata": {"uid": "u"}}
    entry = Entry.of(Key("", "n"), 1, 1, obj, orjson.dumps(obj))
    assert entry.decode() == obj
    assert entry.decode() is not obj
    entry.keep(obj)
    assert entry.decode() is obj
    entry.forget()
    assert entry.decode() is not obj


def test_stored_bytes_are_not_overallocated() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        stored = [encode({"spec": {"number": number, "text": "x" * 500}}) for number in range(100)]
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (after - before) / len(stored) < 700
