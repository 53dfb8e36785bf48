"""Read watches and wait for states, always with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar, cast

from sandpool.kube.transport import WatchEvent

T = TypeVar("T")
WITHIN = 20.0  # seconds; a loaded machine is slow, a missing event never comes


async def take(stream: AsyncIterator[WatchEvent], count: int, *, within: float = WITHIN) -> list[WatchEvent]:
    """Return the next events without bookmarks and close the stream. Fewer if the server ends it."""
    taken: list[WatchEvent] = []
    async with asyncio.timeout(within), aclosing(_closable(stream)) as events:
        async for event in events:
            if event.type != "BOOKMARK":
                taken.append(event)
            if len(taken) == count:
                break
    return taken


async def drain(stream: AsyncIterator[WatchEvent], *, within: float = WITHIN) -> list[WatchEvent]:
    """Return every event, including bookmarks, until the server ends the stream."""
    async with asyncio.timeout(within), aclosing(_closable(stream)) as events:
        return [event async for event in events]


class Listener:
    """A watch that is open within ``async with``; ``next`` returns its events one by one."""

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
    """Poll until the result is true, and return it."""
    async with asyncio.timeout(within):
        while not (answer := await probe()):  # noqa: ASYNC110 - the condition has no asyncio event
            await asyncio.sleep(0.05)
    return answer


class _Closable(AsyncIterator[WatchEvent]):
    async def aclose(self) -> None: ...


def _closable(stream: AsyncIterator[WatchEvent]) -> _Closable:
    """Cast to a closable iterator: transports return one, but the type of ``stream`` does not say so."""
    return cast(_Closable, stream)
