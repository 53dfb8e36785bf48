from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandpool.kube.transport import WatchEvent
from sandpool.testing.waiting import Listener, drain, take, until


class Stream:
    """Numbered events of these types. Records whether it was closed; waits for ever at the end unless ``ends``."""

    def __init__(self, *types: str, ends: bool = True) -> None:
        self.types = types
        self.ends = ends
        self.closed = False

    async def events(self) -> AsyncIterator[WatchEvent]:
        try:
            for number, type in enumerate(self.types):
                yield WatchEvent(type, {"number": number})
            if not self.ends:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_take_skips_bookmarks_and_closes() -> None:
    stream = Stream("ADDED", "BOOKMARK", "DELETED", "ADDED")
    assert [event.object["number"] for event in await take(stream.events(), 2)] == [0, 2]
    assert stream.closed


async def test_take_returns_fewer_when_the_stream_ends() -> None:
    assert len(await take(Stream("ADDED").events(), 5)) == 1


async def test_take_times_out() -> None:
    stream = Stream("ADDED", ends=False)
    with pytest.raises(TimeoutError):
        await take(stream.events(), 2, within=0.01)
    assert stream.closed


async def test_drain_returns_all_events() -> None:
    assert [event.type for event in await drain(Stream("ADDED", "BOOKMARK").events())] == ["ADDED", "BOOKMARK"]


async def test_listener_returns_events_one_by_one() -> None:
    stream = Stream("BOOKMARK", "ADDED", "DELETED", ends=False)
    async with Listener(stream.events()) as listener:
        assert (await listener.next()).type == "ADDED"
        assert (await listener.next()).type == "DELETED"
        with pytest.raises(TimeoutError):
            await listener.next(within=0.01)
    assert stream.closed


async def test_listener_can_return_bookmarks() -> None:
    async with Listener(Stream("BOOKMARK").events(), bookmarks=True) as listener:
        assert (await listener.next()).type == "BOOKMARK"
        with pytest.raises(EOFError):
            await listener.next()


async def test_until_retries_until_the_result_is_true() -> None:
    answers = iter([None, "", "yes"])

    async def probe() -> str | None:
        return next(answers)

    assert await until(probe) == "yes"


async def test_until_times_out() -> None:
    async def never() -> bool:
        return False

    with pytest.raises(TimeoutError):
        await until(never, within=0.01)
