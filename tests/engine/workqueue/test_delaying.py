from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.engine.workqueue.delaying import DelayedAdds
from sandpool.testing.clock import ManualClock


class Rig:
    """Delays, and what they have added when."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.added: list[tuple[float, str, int]] = []
        self.delays: DelayedAdds[str] = DelayedAdds(self.add, self.clock)

    def add(self, key: str, priority: int) -> None:
        self.added.append((self.clock.monotonic(), key, priority))

    @property
    def keys(self) -> list[str]:
        return [key for _, key, _ in self.added]


async def test_key_is_added_when_its_delay_is_over() -> None:
    rig = Rig()
    rig.delays.add_after("a", 10)
    rig.delays.add_after("b", 5, 2)
    await rig.clock.advance(9.9)
    assert rig.added == [(5, "b", 2)]
    assert len(rig.delays) == 1
    assert "a" in rig.delays
    await rig.clock.advance(100)
    assert rig.added == [(5, "b", 2), (10, "a", 0)]
    assert len(rig.delays) == 0


async def test_keys_due_at_the_same_time_come_in_insertion_order() -> None:
    rig = Rig()
    for key in "bca":
        rig.delays.add_after(key, 1)
    await rig.clock.advance(1)
    assert rig.keys == ["b", "c", "a"]


async def test_earliest_time_and_highest_priority_win() -> None:
    rig = Rig()
    rig.delays.add_after("a", 10, 1)
    rig.delays.add_after("a", 5, 0)
    rig.delays.add_after("a", 20, 2)
    await rig.clock.advance(100)
    assert rig.added == [(5, "a", 2)]


async def test_delay_of_zero_adds_at_once() -> None:
    rig = Rig()
    rig.delays.add_after("a", 10, 7)
    rig.delays.add_after("a", 0)
    rig.delays.add_after("b", -1)
    assert rig.added == [(0, "a", 7), (0, "b", 0)]
    await rig.clock.advance(100)
    assert len(rig.added) == 2


async def test_forgotten_key_is_not_added() -> None:
    rig = Rig()
    rig.delays.add_after("a", 10)
    rig.delays.add_after("b", 20)
    rig.delays.forget("a")
    rig.delays.forget("unknown")
    await rig.clock.advance(100)
    assert rig.keys == ["b"]


async def test_forgotten_key_can_be_delayed_again() -> None:
    rig = Rig()
    rig.delays.add_after("a", 10)
    rig.delays.forget("a")
    rig.delays.add_after("a", 30)
    await rig.clock.advance(29)
    assert rig.added == []
    await rig.clock.advance(1)
    assert rig.keys == ["a"]


async def test_one_timer_serves_all_keys_and_none_runs_without() -> None:
    rig = Rig()
    for number in range(1000):
        rig.delays.add_after(str(number), 1000 - number)
        await rig.clock.settle()
        assert rig.clock.sleepers == 1
    await rig.clock.advance(2000)
    assert rig.keys == [str(number) for number in reversed(range(1000))]
    assert rig.clock.sleepers == 0


async def test_timer_sleeps_until_the_next_key_is_due() -> None:
    rig = Rig()
    rig.delays.add_after("a", 3600)
    rig.delays.add_after("b", 7200)
    alarms = 0
    while await rig.clock.jump():
        alarms += 1
    assert alarms == 2
    assert [when for when, _, _ in rig.added] == [3600, 7200]


async def test_stale_heap_entries_are_bounded() -> None:
    rig = Rig()
    for number in range(10_000):
        rig.delays.add_after("a", 10_000_000 - number)
        rig.delays.forget("a")
        rig.delays.add_after("a", 20_000_000)
    assert len(rig.delays._heap) < 200
    rig.delays.close()


async def test_close_stops_the_timer() -> None:
    rig = Rig()
    rig.delays.add_after("a", 10)
    await rig.clock.settle()
    rig.delays.close()
    await rig.clock.advance(100)
    assert rig.added == []
    assert rig.clock.sleepers == 0
    rig.delays.close()


async def test_failing_add_is_logged_and_later_keys_are_added(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()

    def add(key: str, priority: int) -> None:
        if key == "bad":
            raise LookupError(key)
        rig.add(key, priority)

    rig.delays.add = add
    rig.delays.add_after("bad", 1)
    rig.delays.add_after("good", 2)
    with caplog.at_level(logging.CRITICAL):
        await rig.clock.advance(5)
    assert "adding a delayed key failed" in caplog.text
    rig.delays.add_after("next", 1)
    await rig.clock.advance(5)
    assert rig.keys == ["good", "next"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "add", "forget"]), st.sampled_from("abc"), st.integers(0, 9)), max_size=30
    )
)
def test_delaying_queue_equals_a_table_of_earliest_times(steps: list[tuple[str, str, int]]) -> None:
    async def scenario() -> None:
        rig = Rig()
        model: dict[str, int] = {}
        expected: list[tuple[int, str]] = []
        now = 0
        for step, key, number in steps:
            if step == "wait":
                due = sorted(key for key in model if model[key] <= now + number)
                expected.extend((model.pop(key), key) for key in due)
                now += number
                await rig.clock.advance(number)
            elif step == "forget":
                model.pop(key, None)
                rig.delays.forget(key)
            else:
                rig.delays.add_after(key, number)
                if number:
                    model[key] = min(model.get(key, now + number), now + number)
                else:
                    model.pop(key, None)
                    expected.append((now, key))
            assert sorted((when, key) for when, key, _ in rig.added) == sorted(expected)
            assert len(rig.delays) == len(model)
        rig.delays.close()
        await rig.clock.settle()

    asyncio.run(scenario())
