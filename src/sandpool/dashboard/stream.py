"""Server-sent events: the board once, then its changes, samples and usage. One stream for each open page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from sandpool.dashboard.board import Board
from sandpool.dashboard.history import INTERVAL, History, UsageSampler
from sandpool.engine.clock import Clock
from sandpool.kube.user_agent import shared_context

#: Seconds in which changes are collected to one message.
_COLLECTED: Final = 0.15
_USAGE_INTERVAL: Final = 3.0

Send = Callable[[bytes], Awaitable[None]]


class LiveStream:
    """The events that all open pages receive. The usage of sandboxes is read once for all pages, while any is open."""

    def __init__(self, board: Board, history: History, usage: UsageSampler, clock: Clock) -> None:
        self.board = board
        self.history = history
        self.clock = clock
        self._usage = usage
        self._viewers = 0
        self._sampling: asyncio.Task[None] | None = None
        self._latest: dict[str, Any] | None = None

    async def serve(self, send: Send) -> None:
        """Send events until the receiver is gone, which ``send`` says by ``ConnectionError``, or until cancelled."""
        await self.board.attempted()
        self._viewers += 1
        if self._sampling is None:
            sampling = self._sample_usage()
            self._sampling = asyncio.create_task(sampling, name="dashboard: usage", context=shared_context())
        try:
            with self.board.subscribed() as changes:
                unseen = self.board.unseen
                await send(event("rows", {"all": True, "rows": self.board.rows(), "unseen": unseen}))
                await send(event("history", list(self.history.samples)))
                if self._latest is not None:
                    await send(event("usage", self._latest))
                ticking = asyncio.create_task(self._tick(send, unseen), name="dashboard: samples")
                try:
                    while True:
                        waiting = asyncio.create_task(changes.changed())
                        try:
                            await asyncio.wait((waiting, ticking), return_when=asyncio.FIRST_COMPLETED)
                        finally:
                            waiting.cancel()
                        if ticking.done():
                            ticking.result()
                        await self.clock.sleep(_COLLECTED)
                        await send(event("rows", {"rows": changes.take()}))
                finally:
                    ticking.cancel()
                    await asyncio.gather(ticking, return_exceptions=True)
        finally:
            self._viewers -= 1
            if not self._viewers:
                await self.close()

    async def close(self) -> None:
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    async def _tick(self, send: Send, unseen: Mapping[str, str]) -> None:
        shown = self._latest
        sent = self.history.samples[-1] if self.history.samples else None
        since = INTERVAL
        while True:
            await self.clock.sleep(1.0)
            since -= 1.0
            if self.board.unseen != unseen:
                unseen = self.board.unseen
                await send(event("rows", {"rows": {}, "unseen": unseen}))
            if self._latest is not shown:
                shown = self._latest
                await send(event("usage", shown))
            if since <= 0:
                since = INTERVAL
                latest = self.history.samples[-1] if self.history.samples else None
                if latest is not None and latest is not sent:
                    sent = latest
                    await send(event("sample", {**latest, "age": round(self.board.age(), 1)}))
                else:
                    await send(b": still here\n\n")

    async def _sample_usage(self) -> None:
        while True:
            self._latest = dict(await self._usage.read())
            await self.clock.sleep(_USAGE_INTERVAL)


def event(name: str, data: Any) -> bytes:
    """One event. JSON has no line breaks, so it is one line of data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))
