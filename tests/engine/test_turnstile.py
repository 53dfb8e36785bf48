from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sandpool.engine.turnstile import CourteousTransport, Turnstile
from sandpool.kube.transport import Request, WatchEvent


async def pass_through(turnstile: Turnstile, passed: list[str], name: str) -> None:
    await turnstile.turn()
    passed.append(name)


async def test_who_finds_nobody_passes_at_once() -> None:
    turnstile = Turnstile()
    passing = turnstile.turn()
    try:
        passing.send(None)
    except StopIteration:
        return
    raise AssertionError("it had to wait")


async def test_one_passes_per_turn_of_the_loop_in_the_order_of_coming() -> None:
    turnstile, passed = Turnstile(), list[str]()
    tasks = [asyncio.create_task(pass_through(turnstile, passed, name)) for name in "abcd"]
    seen = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        seen.append("".join(passed))
    assert sorted(set(seen), key=len) == ["a", "ab", "abc", "abcd"], "never two in one turn"
    assert len(turnstile) == 0


async def test_others_need_not_wait_for_those_behind_it() -> None:
    turnstile, passed = Turnstile(), list[str]()
    crowd = [asyncio.create_task(pass_through(turnstile, passed, "refill")) for _ in range(100)]
    await asyncio.sleep(0)

    async def claim() -> None:
        for _ in range(3):  # three steps, each with some waiting for something
            await asyncio.sleep(0)
        passed.append("claim")

    await claim()
    assert passed.index("claim") < 10
    await asyncio.gather(*crowd)
    assert len(passed) == 101


async def test_who_gave_up_waiting_takes_no_turn() -> None:
    turnstile, passed = Turnstile(), list[str]()
    tasks = [asyncio.create_task(pass_through(turnstile, passed, name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == ["a", "c"]
    await asyncio.wait_for(turnstile.turn(), 1)


async def test_it_opens_again_when_everybody_has_gone() -> None:
    turnstile, passed = Turnstile(), list[str]()
    for name in "abc":
        await pass_through(turnstile, passed, name)
        await pass_through(turnstile, passed, name)
    assert passed == list("aabbcc")


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


async def test_requests_take_turns_and_watches_do_not() -> None:
    turnstile, echo = Turnstile(), Echo()
    courteous = CourteousTransport(echo, turnstile)
    requests = [asyncio.create_task(courteous.request(Request("GET", f"/{number}"))) for number in range(3)]
    await asyncio.sleep(0)
    assert len(turnstile) == 2
    assert [event.object async for event in courteous.stream(Request("GET", "/watch"))] == [{"path": "/watch"}]
    assert len(turnstile) == 2, "the watch did not wait for them"
    assert await asyncio.gather(*requests) == ["/0", "/1", "/2"]
    await courteous.close()
    assert echo.closed
