"""The simulation's event loop: random order, virtual time, and processes that can be killed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sandpool.testing.simulation.event_loop import Deadlock, Livelock, LoopClock, Process, SimulationLoop


def order(seed: int, *, disorder: float = 1.0, tasks: int = 6) -> list[int]:
    """The order in which tasks run that are ready at the same time."""
    loop = SimulationLoop(Random(seed), disorder=disorder)
    seen: list[int] = []

    async def one(number: int) -> None:
        seen.append(number)
        await asyncio.sleep(0)
        seen.append(number)

    async def run_all() -> None:
        await asyncio.gather(*(one(number) for number in range(tasks)))

    loop.run(run_all())
    return seen


def test_seed_determines_the_order() -> None:
    orders = [order(seed) for seed in range(20)]
    assert [order(seed) for seed in range(20)] == orders
    assert len({tuple(each) for each in orders}) > 10


def test_without_disorder_the_order_is_that_of_asyncio() -> None:
    assert order(1, disorder=0.0) == [*range(6), *range(6)]


def test_time_jumps_to_the_next_timer() -> None:
    loop = SimulationLoop(Random(1))
    clock = LoopClock(loop)

    async def sleep() -> list[float]:
        async def nap(seconds: float) -> float:
            await clock.sleep(seconds)
            return clock.monotonic()

        return list(await asyncio.gather(nap(3600), nap(1), nap(60)))

    assert loop.run(sleep()) == [3600, 1, 60]
    assert (clock.now() - clock.start).total_seconds() == 3600


def test_deadlock_is_reported() -> None:
    loop = SimulationLoop(Random(1))

    async def wait() -> None:
        await loop.create_future()

    with pytest.raises(Deadlock, match="every task waits"):
        loop.run(wait())


def test_livelock_is_reported() -> None:
    loop = SimulationLoop(Random(1), max_steps=100)

    async def spin() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        loop.run(spin())


@pytest.mark.parametrize("seed", range(30))
def test_asyncio_primitives_work_in_any_order(seed: int) -> None:
    loop = SimulationLoop(Random(seed))

    async def everything() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        lock, event = asyncio.Lock(), asyncio.Event()
        taken: list[int] = []
        inside = 0

        async def put() -> None:
            for number in range(5):
                await queue.put(number)

        async def take() -> None:
            taken.extend([await queue.get() for _ in range(5)])
            event.set()

        async def alone() -> None:
            nonlocal inside
            async with lock:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

        async with asyncio.TaskGroup() as group:
            for work in (put(), take(), alone(), alone(), alone(), event.wait()):
                group.create_task(work)
        assert taken == list(range(5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        task = asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(0)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        assert await asyncio.to_thread(lambda: "at once") == "at once"

    loop.run(everything())


def test_no_code_of_a_killed_process_runs_again() -> None:
    loop = SimulationLoop(Random(1))
    said: list[str] = []
    watching = True

    def say(word: str) -> None:
        if watching:
            said.append(word)

    async def child() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                say("child")
        finally:
            say("clean-up")

    async def parent() -> None:
        task = asyncio.create_task(child())
        await asyncio.sleep(2.5)
        say("parent")
        await task

    async def world() -> None:
        nonlocal watching
        process = Process("victim")
        process.run(parent())
        await asyncio.sleep(2.2)
        process.kill()
        await asyncio.sleep(10)
        watching = False

    loop.run(world())
    assert said == ["child", "child"]
    assert all(task.done() for task in loop.tasks)
