"""Listening to watches and waiting for states, always with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar, cast

from sandpool.kube.transport import WatchEvent

T = TypeVar("T")
WITHIN = 20.0  # seconds; a loaded machine is slow, a missing event never comes


async def take(stream: AsyncIterator[WatchEvent], count: int, *, within: float = WITHIN) -> list[WatchEvent]:
    """The next events other than bookmarks; closes the stream. Fewer come back if the server ends it."""
    taken: list[WatchEvent] = []
    async with asyncio.timeout(within), aclosing(_closable(stream)) as events:
        async for event in events:
            if event.type != "BOOKMARK":
                taken.append(event)
            if len(taken) == count:
                break
    return taken


async def drain(stream: AsyncIterator[WatchEvent], *, within: float = WITHIN) -> list[WatchEvent]:
    """Every event, bookmarks too, until the server ends the stream."""
    async with asyncio.timeout(within), aclosing(_closable(stream)) as events:
        return [event async for event in events]


class Listener:
    """A watch that is open for the length of an ``async with``; ``next`` gives its events one by one."""

    def __init__(self, stream: AsyncIterator[WatchEvent], *, bookmarks: bool = False) -> None:
        self._stream = _closable(stream)
        self.bookmarks = bookmarks

    async def next(self, *, within: float = WITHIN) -> WatchEvent:
        async with asyncio.timeout(within):
            async for event in self._stream:
                if self.bookmarks or event.type != "BOOKMARK":
                    return event
        raise EOFError("the server ended the watch")

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.aclose()


async def until(probe: Callable[[], Awaitable[T]], *, within: float = WITHIN) -> T:
    """Ask again and again until the answer is true, and return it."""
    async with asyncio.timeout(within):
        while not (answer := await probe()):  # noqa: ASYNC110 - what is asked for has no event of ours
            await asyncio.sleep(0.05)
    return answer


class _Closable(AsyncIterator[WatchEvent]):
    async def aclose(self) -> None: ...


def _closable(stream: AsyncIterator[WatchEvent]) -> _Closable:
    """Transports promise iterators that can be closed; the type of an async iterator just does not say so."""
    return cast(_Closable, stream)
