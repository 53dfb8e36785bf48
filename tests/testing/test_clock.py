from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.engine.clock import Clock
from sandpool.testing.clock import ManualClock


class Diary:
    """Records which task woke when."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.entries: list[tuple[str, float]] = []

    async def sleep(self, name: str, *naps: float) -> None:
        for nap in naps:
            await self.clock.sleep(nap)
            self.entries.append((name, self.clock.monotonic()))


async def test_time_does_not_pass_by_itself() -> None:
    clock: Clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    assert clock.monotonic() == 0
    assert clock.now() == datetime(2026, 3, 1, tzinfo=UTC)


async def test_advancing_moves_both_times() -> None:
    clock = ManualClock()
    await clock.advance(90)
    assert clock.monotonic() == 90
    assert clock.now() == clock.start + timedelta(seconds=90)


async def test_sleepers_wake_in_order_at_their_time() -> None:
    clock = ManualClock()
    diary = Diary(clock)
    tasks = [asyncio.create_task(diary.sleep("late", 3)), asyncio.create_task(diary.sleep("often", 1, 1, 1.5))]
    await clock.advance(3.2)
    assert diary.entries == [("often", 1), ("often", 2), ("late", 3)]
    await clock.advance(10)
    assert diary.entries[3:] == [("often", 3.5)]
    await asyncio.gather(*tasks)


async def test_sleepers_due_at_the_same_time_wake_one_after_the_other() -> None:
    clock = ManualClock()
    log: list[str] = []

    async def nap(name: str) -> None:
        await clock.sleep(5)
        log.append(f"{name} wakes")
        for _ in range(20):
            await asyncio.sleep(0)
        log.append(f"{name} is done")

    tasks = [asyncio.create_task(nap(name)) for name in "ab"]
    await clock.advance(5)
    assert log == ["a wakes", "a is done", "b wakes", "b is done"]
    await asyncio.gather(*tasks)


async def test_sleep_of_zero_yields() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.monotonic() == 0
    assert clock.sleepers == 0


async def test_cancelled_sleeper_is_not_counted() -> None:
    clock = ManualClock()
    diary = Diary(clock)
    task = asyncio.create_task(diary.sleep("a", 5))
    await clock.settle()
    assert (clock.sleepers, clock.next_alarm) == (1, 5)
    task.cancel()
    await clock.settle()
    assert (clock.sleepers, clock.next_alarm) == (0, None)
    await clock.advance(10)
    assert diary.entries == []
    assert clock.monotonic() == 10


async def test_settle_runs_chains_of_tasks() -> None:
    clock = ManualClock()
    links = [asyncio.Event() for _ in range(500)]

    async def pass_on(index: int) -> None:
        await links[index].wait()
        links[index + 1].set()

    tasks = [asyncio.create_task(pass_on(index)) for index in range(499)]
    links[0].set()
    await clock.settle()
    assert links[-1].is_set()
    await asyncio.gather(*tasks)


async def test_settle_gives_up_on_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpool.testing.clock._MAX_ROUNDS", 100)
    clock = ManualClock()

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - the point of the test
            await asyncio.sleep(0)

    task = asyncio.create_task(spin())
    with pytest.raises(RuntimeError, match=r"spins"):
        await clock.settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_jump_moves_to_the_next_alarm() -> None:
    clock = ManualClock()
    diary = Diary(clock)
    tasks = [asyncio.create_task(diary.sleep("a", 300, 7)), asyncio.create_task(diary.sleep("b", 301))]
    while await clock.jump():
        pass
    assert diary.entries == [("a", 300), ("b", 301), ("a", 307)]
    await asyncio.gather(*tasks)


async def test_advance_rejects_negative_times() -> None:
    with pytest.raises(ValueError, match=r"does not go back"):
        await ManualClock().advance(-1)


@settings(max_examples=50, deadline=None)
@given(naps=st.lists(st.integers(1, 50), min_size=1, max_size=20), steps=st.lists(st.integers(0, 20), max_size=10))
def test_wake_order_does_not_depend_on_the_steps_of_time(naps: list[int], steps: list[int]) -> None:
    async def entries(cuts: list[int]) -> list[tuple[str, float]]:
        clock = ManualClock()
        diary = Diary(clock)
        tasks = [asyncio.create_task(diary.sleep(str(number), nap, nap)) for number, nap in enumerate(naps)]
        for cut in cuts:
            await clock.advance(cut)
        await clock.advance(200 - sum(cuts))
        await asyncio.gather(*tasks)
        return diary.entries

    assert asyncio.run(entries(steps)) == asyncio.run(entries([]))
