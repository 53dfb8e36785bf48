"""An in-memory journal with simulated commit delays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context

from sandpool.server.store.journal import Batch, Row


class MemoryJournal:
    """``delay`` draws the seconds that a commit takes. ``rows`` are the initial content."""

    def __init__(self, delay: Callable[[], float], rows: Iterable[Row] = (), revision: int = 0) -> None:
        self.delay = delay
        self.objects = {row.id: row for row in rows}
        self.revision = revision
        self.rows = len(self.objects)
        self.written = 0.0

    def load(self) -> Iterator[Row]:
        return iter(self.objects.values())

    def commit(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        asyncio.get_running_loop().call_later(self.delay(), self._finish, batch, done)

    def _finish(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        for row in batch.deletes:
            self.objects.pop(row, None)
        self.objects.update(batch.puts)
        self.revision, self.rows = batch.revision, batch.rows
        done(None)

    def close(self) -> None:
        """There is nothing to release."""


class VolumeJournal(MemoryJournal):
    """A journal of a process that may be killed. Its successor has another one, with what is on the volume."""

    def __init__(self, delay: Callable[[], float], rows: Iterable[Row] = (), revision: int = 0) -> None:
        super().__init__(delay, rows, revision)
        self._committing: tuple[asyncio.TimerHandle, Batch, Callable[[Exception | None], object]] | None = None
        self._is_closed = False

    def commit(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        if not self._is_closed:
            timer = asyncio.get_running_loop().call_later(self.delay(), self._finish, batch, done)
            self._committing = timer, batch, done

    def crash(self, *, is_committed: bool) -> VolumeJournal:
        """End with the process that writes, and return what its successor finds. ``is_committed`` tells whether the
        batch of this moment is part of that. If so, the observers of the store learn it."""
        self._is_closed = True
        if self._committing is not None:
            timer, batch, done = self._committing
            timer.cancel()
            if is_committed:
                self._finish(batch, done)
        return VolumeJournal(self.delay, self.objects.values(), self.revision)

    def _finish(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        self._committing = None
        # Not in the context of the process: observers learn what is on the volume, even if it is killed at this moment.
        Context().run(super()._finish, batch, done)
