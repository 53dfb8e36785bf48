from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandpool.engine.background import ParkingQueue
from sandpool.engine.workqueue.queue import ShutDown, WorkQueue
from sandpool.testing.clock import ManualClock

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has no reason to wait."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("it waits")


def emptied(queue: WorkQueue[Any]) -> list[Any]:
    taken = []
    while len(queue):
        taken.append(at_once(queue.get()))
        queue.done(taken[-1])
    return taken


def by_letter(key: str) -> Hashable:
    return key[0]


def test_key_added_repeatedly_is_handed_out_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert emptied(queue) == ["a", "b"]


def test_key_added_while_processing_is_handed_out_again_when_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert at_once(queue.get()) == "a"
    queue.add("a")
    queue.add("a")
    assert (len(queue), queue.processing) == (0, 1)
    queue.done("a")
    assert emptied(queue) == ["a"]


def test_key_of_higher_priority_is_handed_out_first() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("refill", -1)
    queue.add("claim", 5)
    queue.add("other")
    assert emptied(queue) == ["claim", "other", "refill"]


def test_key_added_again_is_raised_but_never_lowered() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in "abc":
        queue.add(key)
    queue.add("c", 1)
    queue.add("c", -1)
    queue.add("a", -1)
    assert emptied(queue) == ["c", "a", "b"]


def test_key_added_while_processing_waits_with_the_highest_priority() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 3)
    at_once(queue.get())
    assert queue.priority("a") == 3
    queue.add("a", -5)
    queue.add("a", 1)
    queue.add("b", 0)
    queue.add("c", 2)
    queue.done("a")
    assert emptied(queue) == ["c", "a", "b"]


def test_groups_are_served_round_robin() -> None:
    queue: WorkQueue[str] = WorkQueue(group=by_letter)
    for key in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        queue.add(key)
    assert emptied(queue) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_r24_claim_goes_before_refills_and_groups_share_the_queue() -> None:
    queue: WorkQueue[str] = WorkQueue(group=by_letter)
    for number in range(10_000):
        queue.add(f"a{number}")
    queue.add("b")
    queue.add("claim", 1)
    assert [at_once(queue.get()) for _ in range(3)] == ["claim", "a0", "b"]


async def test_waiting_workers_get_keys_in_arrival_order() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await ManualClock().settle()
    for key in "abc":
        queue.add(key)
    assert await asyncio.gather(*workers) == ["a", "b", "c"]


async def test_key_of_a_cancelled_worker_goes_to_the_next_worker() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await ManualClock().settle()
    queue.add("a")
    first.cancel()
    assert await second == "a"
    assert first.cancelled()


async def test_worker_that_gave_up_waiting_gets_no_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await ManualClock().settle()
    first.cancel()
    await ManualClock().settle()
    assert len(queue._idle) == 1
    queue.add("a")
    assert await second == "a"


async def test_worker_that_is_being_cancelled_gets_no_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await ManualClock().settle()
    first.cancel()
    queue.add("a")
    assert await second == "a"


async def test_late_worker_can_take_the_key_of_a_waiting_one() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await ManualClock().settle()
    queue.add("a")
    assert at_once(queue.get()) == "a"
    await ManualClock().settle()
    assert not waiting.done()
    queue.add("b")
    assert await waiting == "b"


async def test_shut_down_hands_out_pending_keys_and_accepts_none() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("b")
    at_once(queue.get())
    queue.add("a")
    queue.shut_down()
    queue.add("c")
    assert at_once(queue.get()) == "b"
    queue.done("a")
    assert at_once(queue.get()) == "a"
    with pytest.raises(ShutDown):
        await queue.get()


async def test_shut_down_wakes_idle_workers() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await ManualClock().settle()
    queue.shut_down()
    ends = await asyncio.gather(*workers, return_exceptions=True)
    assert [type(end) for end in ends] == [ShutDown] * 3


async def test_settled_returns_when_every_key_is_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    await queue.settled()
    queue.add("a")
    at_once(queue.get())
    queue.add("a")
    settled = asyncio.create_task(queue.settled())
    queue.done("a")
    await ManualClock().settle()
    assert not settled.done()
    at_once(queue.get())
    queue.done("a")
    await settled


class TestHoldingBack:
    """Small letters have to wait, until they are among the exceptions; ``asked`` are the turns asked for."""

    def setup_method(self) -> None:
        self.asked: list[Callable[[], bool]] = []
        self.exceptions: set[str] = set()
        self.queue: WorkQueue[str] = ParkingQueue(
            lambda key: key.islower() and key not in self.exceptions, self.asked.append
        )

    async def worker(self) -> asyncio.Task[str]:
        worker = asyncio.create_task(self.queue.get())
        await asyncio.sleep(0)
        return worker

    async def test_parked_key_occupies_no_worker(self) -> None:
        worker = await self.worker()
        for key in "abc":
            self.queue.add(key)
        await asyncio.sleep(0)
        assert not worker.done()
        self.queue.add("URGENT")
        assert await worker == "URGENT"
        assert (len(self.queue), self.queue.is_busy) == (3, True)

    async def test_gate_admits_the_parked_key_of_the_highest_priority(self) -> None:
        for key, priority in (("a", -1), ("b", 0), ("c", 0), ("a", 1), ("c", 0)):
            self.queue.add(key, priority)
        for expected in "abc":
            worker = await self.worker()
            assert self.asked.pop()()
            assert await worker == expected

    async def test_key_that_need_not_park_any_more_is_handed_out(self) -> None:
        worker = await self.worker()
        self.queue.add("a", 1)
        self.exceptions.add("a")
        self.queue.add("a", -1)
        assert await worker == "a"
        assert self.queue.priority("a") == 1
        assert not self.asked.pop()(), "no key is parked"
        self.queue.done("a")
        assert not len(self.queue)

    async def test_as_many_admissions_are_requested_as_there_are_workers(self) -> None:
        for key in "abcdef":
            self.queue.add(key)
        assert self.asked == [], "no worker waits yet"
        first, second = await self.worker(), await self.worker()
        assert len(self.asked) == 2
        self.asked.pop()()
        self.asked.pop()()
        assert self.asked == [], "who was let in has to be taken first"
        assert {await first, await second} == {"a", "b"}
        assert len(self.asked) == 2, "the workers will be done some time"

    async def test_busy_worker_takes_an_admitted_key_next(self) -> None:
        """Otherwise a continuous stream of urgent keys would starve the parked ones."""
        self.queue.add("FIRST")
        assert at_once(self.queue.get()) == "FIRST"
        self.queue.add("a")
        self.asked.pop()()
        self.queue.add("SECOND")
        self.queue.done("FIRST")
        assert at_once(self.queue.get()) == "a"

    async def test_key_added_while_processing_parks_again(self) -> None:
        worker = await self.worker()
        self.queue.add("a")
        self.asked.pop()()
        await worker
        self.queue.add("a")
        self.queue.done("a")
        worker = await self.worker()
        assert not worker.done()
        self.asked.pop()()
        assert await worker == "a"

    async def test_parked_keys_are_dropped_at_shut_down(self) -> None:
        worker = await self.worker()
        for key in "ab":
            self.queue.add(key)
        self.queue.shut_down()
        with pytest.raises(ShutDown):
            await worker
        await self.queue.settled()
        assert not any(turn() for turn in self.asked)

    async def test_key_that_would_park_after_shut_down_is_dropped(self) -> None:
        self.queue.add("A")
        assert at_once(self.queue.get()) == "A"
        self.exceptions.add("a")
        self.queue.add("a")
        assert at_once(self.queue.get()) == "a"
        self.queue.add("a")
        self.exceptions.clear()
        self.queue.shut_down()
        for key in ("a", "A"):
            self.queue.done(key)
        await self.queue.settled()


def test_done_of_a_key_not_processed_raises() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    with pytest.raises(KeyError):
        queue.done("a")


def test_r34_key_costs_the_same_with_100000_keys() -> None:
    def seconds_per_key(count: int, groups: int) -> float:
        queue: WorkQueue[int] = WorkQueue(group=lambda key: key % groups)
        start = time.process_time()
        for key in range(count):
            queue.add(key, key % 3)
        for key in range(0, count, 7):
            queue.add(key, 3)
        while len(queue):
            queue.done(at_once(queue.get()))
        return (time.process_time() - start) / count

    few = min(seconds_per_key(1_000, 10) for _ in range(10))
    # What is not flat is off by a factor of a hundred; the room left is for the caches of the processor.
    assert seconds_per_key(100_000, 1) < 6 * few
    assert seconds_per_key(100_000, 50_000) < 6 * few


class QueueModel(RuleBasedStateMachine):
    """The queue against lists that are searched from one end to the other."""

    keys = st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1"])
    priorities = st.integers(-1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.queue: WorkQueue[str] = WorkQueue(group=by_letter)
        self.waiting: list[tuple[int, str]] = []  # in the order in which they began to wait at this priority
        self.processing: dict[str, int | None] = {}  # and the priority asked for meanwhile
        self.turns: dict[int, list[Hashable]] = {}  # by priority, whose turn is next

    @rule(key=keys, priority=priorities)
    def add(self, key: str, priority: int) -> None:
        self.queue.add(key, priority)
        if key in self.processing:
            again = self.processing[key]
            self.processing[key] = priority if again is None else max(again, priority)
        else:
            self.wait(key, priority)

    def wait(self, key: str, priority: int) -> None:
        before = [p for p, waiting in self.waiting if waiting == key]
        if before and before[0] >= priority:
            return
        if before:
            self.waiting.remove((before[0], key))
            self.end_turns(before[0])
        self.waiting.append((priority, key))
        turns = self.turns.setdefault(priority, [])
        if by_letter(key) not in turns:
            turns.append(by_letter(key))

    def end_turns(self, priority: int) -> None:
        here = {by_letter(key) for p, key in self.waiting if p == priority}
        self.turns[priority] = [group for group in self.turns[priority] if group in here]

    @precondition(lambda self: self.waiting)
    @rule()
    def get(self) -> None:
        priority = max(p for p, _ in self.waiting)
        group = self.turns[priority].pop(0)
        key = next(key for p, key in self.waiting if p == priority and by_letter(key) == group)
        self.waiting.remove((priority, key))
        self.turns[priority].append(group)
        self.end_turns(priority)
        assert at_once(self.queue.get()) == key
        assert self.queue.priority(key) == priority
        assert key not in self.processing
        self.processing[key] = None

    @precondition(lambda self: self.processing)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.processing)))
        self.queue.done(key)
        again = self.processing.pop(key)
        if again is not None:
            self.wait(key, again)

    @invariant()
    def counts_agree(self) -> None:
        assert (len(self.queue), self.queue.processing) == (len(self.waiting), len(self.processing))
        assert self.queue._settled.is_set() == (not self.waiting and not self.processing)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
