"""An in-memory journal with simulated commit delays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

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
