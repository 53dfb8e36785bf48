"""Free lists: the fullest node first, the oldest sandbox first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.resource import Key
from sandpool.controllers.claim.assignment.free_list import FreeList, FreeLists

POOL = Key("default", "pool")


def sandbox(number: int) -> Key:
    return Key("default", f"sandbox-{number}")


def test_empty_list_is_falsy() -> None:
    free = FreeList()
    assert not free
    free.push(sandbox(1), "a")
    assert free
    assert free.pop() == sandbox(1)
    assert not free


def test_node_with_the_most_free_sandboxes_is_served_first() -> None:
    free = FreeList()
    free.push(sandbox(1), "a")
    free.push(sandbox(2), "b")
    free.push(sandbox(3), "b")
    assert free.pop() == sandbox(2)


def test_nodes_with_equally_many_sandboxes_alternate() -> None:
    free = FreeList()
    for number in range(6):
        free.push(sandbox(number), "ab"[number // 3])
    assert [free.pop() for _ in range(6)] == [sandbox(number) for number in (0, 3, 1, 4, 2, 5)]


def test_oldest_sandbox_of_a_node_is_served_first() -> None:
    free = FreeList()
    for number in range(3):
        free.push(sandbox(number), "a")
    free.remove(sandbox(0), "a")
    assert [free.pop(), free.pop()] == [sandbox(1), sandbox(2)]


def test_returned_sandbox_is_served_next() -> None:
    free = FreeList()
    free.push(sandbox(1), "a")
    free.push(sandbox(2), "a")
    away = free.pop()
    free.push(away, "a", first=True)
    assert free.pop() == away


STEPS = ["push", "pop", "remove", "avoid", "trust"]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(0, 40))))
def test_fullest_node_that_is_not_deprioritized_is_served_first(
    steps: list[tuple[str, int, int]],
) -> None:
    stock = FreeLists()
    model: dict[Key, str] = {}
    deprioritized: set[str] = set()
    for number, (step, node, pick) in enumerate(steps):
        if step == "push":
            stock.push(POOL, "new", str(node), sandbox(number))
            model[sandbox(number)] = str(node)
        elif step == "avoid":
            stock.deprioritize(str(node))
            deprioritized.add(str(node))
        elif step == "trust":
            stock.restore(str(node))
            deprioritized.discard(str(node))
        elif model and step == "pop":
            taken = stock.pop(POOL, None)
            assert taken is not None
            counts = Counter(model.values())
            served = counts.keys() - deprioritized or counts.keys()
            assert model[taken] in served
            assert counts[model[taken]] == max(counts[each] for each in served)
            del model[taken]
        elif model:
            gone = sorted(model)[pick % len(model)]
            stock.remove(POOL, "new", model.pop(gone), gone)
    assert {stock.pop(POOL, None) for _ in range(len(model))} == set(model)
    assert stock.pop(POOL, None) is None


def test_any_compatibility_prefers_a_node_that_is_not_deprioritized() -> None:
    stock = FreeLists()
    stock.push(POOL, "old", "a", sandbox(1))
    stock.push(POOL, "new", "b", sandbox(2))
    stock.deprioritize("a")
    assert [stock.pop(POOL, None), stock.pop(POOL, None)] == [sandbox(2), sandbox(1)]


def test_any_compatibility_serves_the_oldest_revision_first() -> None:
    stock = FreeLists()
    stock.push(POOL, "new", "a", sandbox(3))
    assert stock.pop(POOL, None) == sandbox(3)
    stock.push(POOL, "old", "a", sandbox(1))
    stock.push(POOL, "new", "a", sandbox(2))
    stock.push(POOL, "old", "a", sandbox(4))
    assert [stock.pop(POOL, None) for _ in range(4)] == [sandbox(1), sandbox(4), sandbox(2), None]


def test_pools_and_compatibilities_are_separate() -> None:
    stock = FreeLists()
    stock.push(POOL, "gvisor", "a", sandbox(1))
    assert stock.pop(Key("default", "other"), None) is None
    assert stock.pop(POOL, "kata") is None
    assert stock.pop(POOL, "gvisor") == sandbox(1)


def test_empty_lists_are_removed() -> None:
    stock = FreeLists()
    for number in range(100):
        stock.push(Key("default", f"pool-{number}"), str(number), "a", sandbox(number))
        stock.remove(Key("default", f"pool-{number}"), str(number), "a", sandbox(number))
    assert stock._pools == {}
