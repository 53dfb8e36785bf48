"""Tells the echo of a pass's own writes from news.

What a pass writes changes what passes read, so every write would have its object looked at once more, for nothing. The
echo comes with the answer, which is put into the cache at once, or by the watch, whichever is faster. It cannot be told
from news by looking at it: the same answer may contain the change of somebody else, whose own event is old news then.

So whatever wakes a key during a pass over it is kept until the pass is done. Then it is asked whether anything is left
to do, which costs no request, and only if so the key is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandpool.engine.cache.store import Key


class OwnWriteFilter:
    """Wakes keys by ``enqueue``. ``has_work`` must know everything that would make a pass do something."""

    def __init__(self, enqueue: Callable[[Key], object], has_work: Callable[[Key], bool]) -> None:
        self.enqueue = enqueue
        self.has_work = has_work
        # Keys over which there is a pass now, and whether they were woken since it began.
        self._passes: dict[Key, bool] = {}

    def wake(self, key: Key) -> None:
        """Have a key looked at because something has changed."""
        if key in self._passes:
            self._passes[key] = True
        else:
            self.enqueue(key)

    @contextmanager
    def reconciling(self, key: Key) -> Iterator[None]:
        """Surrounds a pass. One that has failed may have missed anything, so then every echo counts."""
        self._passes[key] = False
        try:
            yield
        except BaseException:
            if self._passes.pop(key):
                self.enqueue(key)
            raise
        if self._passes.pop(key) and self.has_work(key):
            self.enqueue(key)
