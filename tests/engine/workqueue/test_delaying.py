from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.engine.workqueue.delaying import DelayedAdds
from sandpool.testing.clock import ManualClock


class Desk:
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
    desk = Desk()
    desk.delays.add_after("a", 10)
    desk.delays.add_after("b", 5, 2)
    await desk.clock.advance(9.9)
    assert desk.added == [(5, "b", 2)]
    assert len(desk.delays) == 1
    assert "a" in desk.delays
    await desk.clock.advance(100)
    assert desk.added == [(5, "b", 2), (10, "a", 0)]
    assert len(desk.delays) == 0


async def test_keys_due_at_the_same_time_come_in_insertion_order() -> None:
    desk = Desk()
    for key in "bca":
        desk.delays.add_after(key, 1)
    await desk.clock.advance(1)
    assert desk.keys == ["b", "c", "a"]


async def test_earliest_time_and_highest_priority_win() -> None:
    desk = Desk()
    desk.delays.add_after("a", 10, 1)
    desk.delays.add_after("a", 5, 0)
    desk.delays.add_after("a", 20, 2)
    await desk.clock.advance(100)
    assert desk.added == [(5, "a", 2)]


async def test_delay_of_zero_adds_at_once() -> None:
    desk = Desk()
    desk.delays.add_after("a", 10, 7)
    desk.delays.add_after("a", 0)
    desk.delays.add_after("b", -1)
    assert desk.added == [(0, "a", 7), (0, "b", 0)]
    await desk.clock.advance(100)
    assert len(desk.added) == 2


async def test_forgotten_key_is_not_added() -> None:
    desk = Desk()
    desk.delays.add_after("a", 10)
    desk.delays.add_after("b", 20)
    desk.delays.forget("a")
    desk.delays.forget("unknown")
    await desk.clock.advance(100)
    assert desk.keys == ["b"]


async def test_forgotten_key_can_be_delayed_again() -> None:
    desk = Desk()
    desk.delays.add_after("a", 10)
    desk.delays.forget("a")
    desk.delays.add_after("a", 30)
    await desk.clock.advance(29)
    assert desk.added == []
    await desk.clock.advance(1)
    assert desk.keys == ["a"]


async def test_one_timer_serves_all_keys_and_none_runs_without() -> None:
    desk = Desk()
    for number in range(1000):
        desk.delays.add_after(str(number), 1000 - number)
        await desk.clock.settle()
        assert desk.clock.sleepers == 1
    await desk.clock.advance(2000)
    assert desk.keys == [str(number) for number in reversed(range(1000))]
    assert desk.clock.sleepers == 0


async def test_timer_sleeps_until_the_next_key_is_due() -> None:
    desk = Desk()
    desk.delays.add_after("a", 3600)
    desk.delays.add_after("b", 7200)
    alarms = 0
    while await desk.clock.jump():
        alarms += 1
    assert alarms == 2
    assert [when for when, _, _ in desk.added] == [3600, 7200]


async def test_stale_heap_entries_are_bounded() -> None:
    desk = Desk()
    for number in range(10_000):
        desk.delays.add_after("a", 10_000_000 - number)
        desk.delays.forget("a")
        desk.delays.add_after("a", 20_000_000)
    assert len(desk.delays._heap) < 200
    desk.delays.close()


async def test_close_stops_the_timer() -> None:
    desk = Desk()
    desk.delays.add_after("a", 10)
    await desk.clock.settle()
    desk.delays.close()
    await desk.clock.advance(100)
    assert desk.added == []
    assert desk.clock.sleepers == 0
    desk.delays.close()


async def test_failing_add_is_logged_and_later_keys_are_added(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()

    def add(key: str, priority: int) -> None:
        if key == "bad":
            raise LookupError(key)
        desk.add(key, priority)

    desk.delays.add = add
    desk.delays.add_after("bad", 1)
    desk.delays.add_after("good", 2)
    with caplog.at_level(logging.CRITICAL):
        await desk.clock.advance(5)
    assert "adding a delayed key failed" in caplog.text
    desk.delays.add_after("next", 1)
    await desk.clock.advance(5)
    assert desk.keys == ["good", "next"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "add", "forget"]), st.sampled_from("abc"), st.integers(0, 9)), max_size=30
    )
)
def test_delaying_queue_equals_a_table_of_earliest_times(steps: list[tuple[str, str, int]]) -> None:
    async def scenario() -> None:
        desk = Desk()
        model: dict[str, int] = {}
        expected: list[tuple[int, str]] = []
        now = 0
        for step, key, number in steps:
            if step == "wait":
                due = sorted(key for key in model if model[key] <= now + number)
                expected.extend((model.pop(key), key) for key in due)
                now += number
                await desk.clock.advance(number)
            elif step == "forget":
                model.pop(key, None)
                desk.delays.forget(key)
            else:
                desk.delays.add_after(key, number)
                if number:
                    model[key] = min(model.get(key, now + number), now + number)
                else:
                    model.pop(key, None)
                    expected.append((now, key))
            assert sorted((when, key) for when, key, _ in desk.added) == sorted(expected)
            assert len(desk.delays) == len(model)
        desk.delays.close()
        await desk.clock.settle()

    asyncio.run(scenario())
