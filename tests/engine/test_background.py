from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import SystemClock
from sandpool.engine.transports import BackgroundTransport
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock


async def pass_through(gate: BackgroundGate, passed: list[str], name: str) -> None:
    await gate.wait()
    passed.append(name)


async def test_gate_admits_at_once_when_idle() -> None:
    gate = BackgroundGate(SystemClock())
    passing = gate.wait()
    try:
        passing.send(None)
    except StopIteration:
        return
    raise AssertionError("it had to wait")


async def test_gate_admits_one_per_loop_iteration_in_arrival_order() -> None:
    gate, passed = BackgroundGate(SystemClock()), list[str]()
    tasks = [asyncio.create_task(pass_through(gate, passed, name)) for name in "abcd"]
    seen = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        seen.append("".join(passed))
    assert sorted(set(seen), key=len) == ["a", "ab", "abc", "abcd"], "never two in one turn"
    assert gate.waiting == 0


async def test_other_tasks_do_not_wait_for_those_at_the_gate() -> None:
    gate, passed = BackgroundGate(SystemClock()), list[str]()
    crowd = [asyncio.create_task(pass_through(gate, passed, "refill")) for _ in range(100)]
    await asyncio.sleep(0)

    async def claim() -> None:
        for _ in range(3):  # three steps, each with some waiting for something
            await asyncio.sleep(0)
        passed.append("claim")

    await claim()
    assert passed.index("claim") < 10
    await asyncio.gather(*crowd)
    assert len(passed) == 101


async def test_cancelled_waiter_uses_no_turn() -> None:
    gate, passed = BackgroundGate(SystemClock()), list[str]()
    tasks = [asyncio.create_task(pass_through(gate, passed, name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == ["a", "c"]
    await asyncio.wait_for(gate.wait(), 1)


async def test_gate_is_open_again_when_all_waiters_have_passed() -> None:
    gate, passed = BackgroundGate(SystemClock()), list[str]()
    for name in "abc":
        await pass_through(gate, passed, name)
        await pass_through(gate, passed, name)
    assert passed == list("aabbcc")


async def test_submitted_callback_is_called_in_its_turn() -> None:
    gate, passed = BackgroundGate(SystemClock()), list[str]()

    def enter(name: str) -> bool:
        if name != "has gone":
            passed.append(name)
        return name != "has gone"

    def submit(name: str) -> None:
        gate.submit(lambda: enter(name))

    for name in ("a", "has gone", "b", "c"):
        submit(name)
    assert passed == ["a"], "the gate was idle"
    for expected in ("ab", "abc", "abc"):
        await asyncio.sleep(0)
        assert "".join(passed) == expected, "who has gone took no turn"
    submit("has gone")
    submit("d")
    assert passed[-1] == "d"


class Echo:
    """Answers a request with its path and a watch with one event."""

    def __init__(self) -> None:
        self.closed = False

    async def request(self, request: Request) -> Any:
        return request.path

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        yield WatchEvent("ADDED", {"path": request.path})

    async def close(self) -> None:
        self.closed = True


async def test_requests_wait_at_the_gate_and_watches_do_not() -> None:
    gate, echo = BackgroundGate(SystemClock()), Echo()
    transport = BackgroundTransport(echo, gate)
    requests = [asyncio.create_task(transport.request(Request("GET", f"/{number}"))) for number in range(3)]
    await asyncio.sleep(0)
    assert gate.waiting == 2
    assert [event.object async for event in transport.stream(Request("GET", "/watch"))] == [{"path": "/watch"}]
    assert gate.waiting == 2, "the watch did not wait for them"
    assert await asyncio.gather(*requests) == ["/0", "/1", "/2"]
    await transport.close()
    assert echo.closed


class TestGivingWay:
    async def test_gate_admits_none_while_urgent_work_is_pending(self) -> None:
        gate, passed, claims = BackgroundGate(ManualClock()), list[str](), WorkQueue[str]()
        gate.yield_to(claims)
        claims.add("waits for a worker")
        claims.add("is with a worker")
        tasks = [asyncio.create_task(pass_through(gate, passed, name)) for name in "ab"]
        for _ in range(2):
            await turns_of_the_loop(5)
            assert passed == []
            claims.done(await claims.get())
        await asyncio.gather(*tasks)
        assert passed == ["a", "b"]

    async def test_waiter_past_its_patience_is_admitted_on_the_next_activity(
        self,
    ) -> None:
        clock = ManualClock()
        gate, passed, claims = BackgroundGate(clock, max_delay=1.0), list[str](), WorkQueue[str]()
        gate.yield_to(claims)
        for name in "xyz":
            claims.add(name)
        tasks = [asyncio.create_task(pass_through(gate, passed, name)) for name in "ab"]
        await turns_of_the_loop(5)
        await clock.advance(0.9)
        claims.done(await claims.get())
        await turns_of_the_loop(5)
        assert passed == [], "not for long enough"
        await clock.advance(0.1)
        claims.done(await claims.get())
        await turns_of_the_loop(5)
        assert passed == ["a", "b"]
        await asyncio.gather(*tasks)

    async def test_continuous_load_delays_each_waiter_by_its_patience_at_most(self) -> None:
        """The delay does not accumulate over several steps."""
        clock = ManualClock()
        gate, passed, claims = BackgroundGate(clock, max_delay=1.0), list[str](), WorkQueue[str]()
        gate.yield_to(claims)
        claims.add("first")
        waiting = asyncio.create_task(pass_through(gate, passed, "a"))
        for number in range(9):
            await turns_of_the_loop(5)
            assert passed == []
            claims.add(str(number))
            claims.done(await claims.get())
            await clock.advance(0.1)
        await clock.advance(0.2)
        claims.add("more")
        claims.done(await claims.get())
        await waiting
        for name in "bcd":
            await asyncio.wait_for(pass_through(gate, passed, name), 1)
        assert passed == ["a", "b", "c", "d"]

        claims.done(await claims.get())  # a break
        claims.add("another burst")
        waiting = asyncio.create_task(pass_through(gate, passed, "e"))
        await turns_of_the_loop(5)
        assert passed == ["a", "b", "c", "d"]
        claims.done(await claims.get())
        await waiting

    async def test_waiter_past_its_patience_is_admitted_without_activity(self) -> None:
        gate, claims = BackgroundGate(SystemClock(), max_delay=0.05), WorkQueue[str]()
        gate.yield_to(claims)
        claims.add("is not answered")
        await claims.get()
        await asyncio.wait_for(gate.wait(), 30)

    async def test_queue_that_was_shut_down_holds_no_waiter_back(self) -> None:
        gate, passed, claims = BackgroundGate(ManualClock()), list[str](), WorkQueue[str]()
        gate.yield_to(claims)
        claims.add("left to the next leader")
        waiting = asyncio.create_task(pass_through(gate, passed, "waited before"))
        await turns_of_the_loop(5)
        assert passed == []
        claims.shut_down()
        await asyncio.wait_for(waiting, 30)
        await asyncio.wait_for(gate.wait(), 30)


async def turns_of_the_loop(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)
