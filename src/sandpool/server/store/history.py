"""Recent changes of one resource: watches resume from them, and paginated lists stay consistent.

Bounded by count and by bytes. Older changes are *compacted*: clients that need them get 410 and list again. A change
that exceeds the bounds is released, so a watch that has not read it ends. The history is therefore the only memory for
what watches have yet to send, however many there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice

from sandpool.api.resource import Key
from sandpool.server.store.entry import Change, Entry

# The newest changes keep their encoded events, because live watches are about to send them.
_FRESH = 256
_FRESH_BYTES = 8 << 20


class Compacted(Exception):
    """The requested revision is older than the history."""

    def __init__(self, revision: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {revision} ({oldest})")
        self.revision = revision
        self.oldest = oldest


class History:
    def __init__(self, start: int, *, max_changes: int, max_bytes: int) -> None:
        self.max_changes = max_changes
        self.max_bytes = max_bytes
        self.compacted = start  # every change after this revision is in _changes
        self._changes: deque[Change] = deque()  # ascending revisions
        self.bytes = 0  # of the encoded states in _changes
        self._fresh: deque[Change] = deque()  # the newest changes, which keep their encoded events
        self._fresh_bytes = 0

    def __len__(self) -> int:
        return len(self._changes)

    def append(self, change: Change) -> None:
        self._changes.append(change)
        self._fresh.append(change)
        self.bytes += change.size
        self._fresh_bytes += change.size
        while len(self._fresh) > _FRESH or (self._fresh_bytes > _FRESH_BYTES and len(self._fresh) > 1):
            self._drop_renderings()
        while len(self._changes) > self.max_changes or (self.bytes > self.max_bytes and len(self._changes) > 1):
            self.release_oldest()

    def release_oldest(self) -> None:
        self._drop_oldest().release()

    def _drop_oldest(self) -> Change:
        oldest = self._changes.popleft()
        if self._fresh and self._fresh[0] is oldest:
            self._drop_renderings()
        self.bytes -= oldest.size
        self.compacted = oldest.revision
        return oldest

    def _drop_renderings(self) -> None:
        change = self._fresh.popleft()
        self._fresh_bytes -= change.size
        change.renderings.clear()

    def compact(self, revision: int) -> None:
        """Drop all changes up to and including a revision."""
        while self._changes and self._changes[0].revision <= revision:
            self._drop_oldest()
        self.compacted = max(self.compacted, revision)

    def since(self, revision: int) -> Iterator[Change]:
        """Changes after a revision, oldest first."""
        if revision < self.compacted:
            raise Compacted(revision, self.compacted)
        start = bisect_right(self._changes, revision, key=lambda change: change.revision)
        return islice(self._changes, start, None)

    def undo(self, revision: int) -> dict[Key, Entry | None]:
        """The state at a revision of every key that changed since (None: it did not exist)."""
        then: dict[Key, Entry | None] = {}
        for change in self.since(revision):
            then.setdefault(change.entry.key, change.previous)
        return then
