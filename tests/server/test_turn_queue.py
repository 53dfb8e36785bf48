"""A queue in which users take turns."""

from __future__ import annotations

import asyncio
from functools import partial

from sandpool.server.turn_queue import TurnQueue


async def start(queue: TurnQueue[str], order: list[str], *users: str) -> list[asyncio.Task[None]]:
    async def wait(user: str) -> None:
        await queue.wait(user, lambda: order.append(user))

    tasks = [asyncio.ensure_future(wait(user)) for user in users]
    await asyncio.sleep(0)
    return tasks


async def test_users_take_turns() -> None:
    queue: TurnQueue[str] = TurnQueue()
    order: list[str] = []
    tasks = await start(queue, order, *"aaaabbc")
    while queue.admit_next():
        pass
    assert order == [*"abcabaa"]
    await asyncio.gather(*tasks)
    assert "a" not in queue


async def test_one_user_is_admitted_in_arrival_order() -> None:
    queue: TurnQueue[int] = TurnQueue()
    order: list[int] = []
    tasks = [asyncio.ensure_future(queue.wait(1, partial(order.append, number))) for number in range(5)]
    await asyncio.sleep(0)
    assert queue.count(1) == 5
    while queue.admit(1):
        pass
    assert order == [0, 1, 2, 3, 4]
    await asyncio.gather(*tasks)


async def test_cancelled_requests_are_passed_over() -> None:
    queue: TurnQueue[str] = TurnQueue()
    order: list[str] = []
    tasks = await start(queue, order, "a", "b")
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert queue.admit_next()
    assert order == ["b"]
    assert not queue.admit_next()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_request_that_is_admitted_and_cancelled_at_once_gives_its_place_back() -> None:
    queue: TurnQueue[str] = TurnQueue()
    given_back: list[str] = []
    task = asyncio.ensure_future(queue.wait("a", give_back=lambda: given_back.append("a")))
    await asyncio.sleep(0)
    assert queue.admit("a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert given_back == ["a"]
