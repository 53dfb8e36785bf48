from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.engine.workqueue.fair import FairQueue


def filled(*keys: str) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue()
    for key in keys:
        queue.push(key, key[0])
    return queue


def emptied(queue: FairQueue[str]) -> list[str]:
    taken = []
    while queue:
        taken.append(queue.pop())
    return taken


def test_group_is_first_in_first_out() -> None:
    assert emptied(filled("a2", "a1", "a3")) == ["a2", "a1", "a3"]


def test_groups_are_served_round_robin() -> None:
    assert emptied(filled("a1", "a2", "a3", "b1", "c1", "c2")) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_group_that_returns_is_served_last() -> None:
    queue = filled("a1", "b1", "b2")
    assert queue.pop() == "a1"
    queue.push("a2", "a")
    assert emptied(queue) == ["b1", "a2", "b2"]


def test_removing_the_last_key_removes_its_group() -> None:
    queue = filled("a1", "b1", "b2")
    queue.remove("b1", "b")
    queue.remove("a1", "a")
    assert emptied(queue) == ["b2"]


@settings(deadline=None)
@given(st.lists(st.text("abcd", min_size=2, max_size=4), unique=True))
def test_no_group_is_served_twice_while_another_waits(keys: list[str]) -> None:
    queue = filled(*keys)
    waiting = list(keys)
    since: dict[str, int] = {}  # times other groups were served since a group was
    while queue:
        group = queue.pop()[0]
        since.pop(group, None)
        for other in {key[0] for key in waiting} - {group}:
            since[other] = since.get(other, 0) + 1
            assert since[other] < len({key[0] for key in keys})
        waiting.remove(next(key for key in waiting if key[0] == group))
