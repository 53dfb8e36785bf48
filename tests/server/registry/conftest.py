"""A disk that does as it is told, under a server without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sandpool.server.api_server import ApiServer
from sandpool.server.store.journal import Batch

Done = Callable[[Exception | None], object]


class Disk:
    """Holds commits back, or fails them, between a server and its journal."""

    def __init__(self, server: ApiServer) -> None:
        self._journal = server.store._journal
        self._commit = self._journal.commit
        self._held: list[tuple[Batch, Done]] | None = None
        self.commits = 0
        self._journal.commit = self._receive  # type: ignore[method-assign]

    def _receive(self, batch: Batch, done: Done) -> None:
        self.commits += 1
        if self._held is None:
            self._commit(batch, done)
        else:
            self._held.append((batch, done))

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for batch, done in held:
            self._commit(batch, done)

    def fail(self, error: Exception) -> None:
        """Fail the held commit; later commits are written."""
        held, self._held = self._held or [], None
        for _, done in held:
            done(error)


@pytest.fixture
def disk(server: ApiServer) -> Iterator[Disk]:
    disk = Disk(server)
    yield disk
    disk.release()
