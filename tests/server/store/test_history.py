from __future__ import annotations

import pytest

from sandpool.api.resource import Key
from sandpool.server.store.entry import Change, Entry
from sandpool.server.store.history import Compacted, History


def change(revision: int, name: str = "a", previous: Entry | None = None, size: int = 10) -> Change:
    entry = Entry(Key("", name), revision, 1, b"x" * size, "u", {}, ())
    return Change("MODIFIED" if previous else "ADDED", entry, previous)


def history(**bounds: int) -> History:
    return History(0, max_changes=bounds.get("max_changes", 100), max_bytes=bounds.get("max_bytes", 1 << 20))


def test_changes_since_a_revision_come_oldest_first() -> None:
    kept = history()
    for revision in (3, 5, 9):
        kept.append(change(revision))
    assert [c.revision for c in kept.since(0)] == [3, 5, 9]
    assert [c.revision for c in kept.since(3)] == [5, 9]
    assert [c.revision for c in kept.since(4)] == [5, 9]
    assert [c.revision for c in kept.since(9)] == []


def test_dropped_changes_are_compacted() -> None:
    kept = history(max_changes=2)
    for revision in (1, 2, 3, 4):
        kept.append(change(revision))
    assert [c.revision for c in kept.since(2)] == [3, 4]
    with pytest.raises(Compacted, match=r"too old resource version: 1 \(2\)"):
        kept.since(1)


def test_bytes_are_bounded_and_the_newest_change_is_kept() -> None:
    kept = history(max_bytes=25)
    for revision in (1, 2, 3):
        kept.append(change(revision))
    assert [c.revision for c in kept.since(kept.compacted)] == [2, 3]
    kept.append(change(4, size=1000))
    assert [c.revision for c in kept.since(kept.compacted)] == [4]


def test_undo_returns_the_earlier_state_of_each_key() -> None:
    kept = history()
    first = change(1)
    second = change(2, previous=first.entry)
    third = change(3, previous=second.entry)
    new = change(4, name="b")
    for each in (first, second, third, new):
        kept.append(each)
    assert kept.undo(2) == {("", "a"): second.entry, ("", "b"): None}
    assert kept.undo(0) == {("", "a"): None, ("", "b"): None}
    assert kept.undo(4) == {}
