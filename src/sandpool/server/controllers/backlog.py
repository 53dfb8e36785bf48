"""Keys that need a look, and the handler that looks at them.

The promise to whoever adds a key:

* it is handled at least once after it was added, and added ten times before that it is handled once;
* it is never handled twice at the same time: added while it is handled, it is handled again afterwards;
* a handler that fails is called again, after a pause that grows with every failure in a row.

Several keys are handled at once, because a handler mostly waits for the disk and one sync serves them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import backoff_delay
from sandpool.kube.errors import ApiError

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 60.0

K = TypeVar("K", bound=Hashable)


class Backlog(Generic[K]):
    def __init__(self, handle: Callable[[K], Awaitable[None]], clock: Clock, *, parallel: int = 64) -> None:
        self.handle = handle
        self.clock = clock
        self.parallel = parallel
        # In the order in which they were added; never holds a key of _busy. Taking the first of a plain dict would walk
        # over all that were taken before it.
        self._waiting: OrderedDict[K, None] = OrderedDict()
        self._busy: dict[K, bool] = {}  # being handled or paused; True: it was added meanwhile
        self._failures: dict[K, int] = {}  # failures in a row
        self._paused = 0  # how many of _busy sleep after a failure, and leave room for others
        self._later: dict[K, float] = {}  # keys to add after so many seconds; the time has not begun to run
        self._asleep: set[K] = set()  # keys to add later whose time runs
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()  # set exactly while _waiting and _busy are empty
        self._idle.set()

    def add(self, key: K) -> None:
        self._idle.clear()
        if key in self._busy:
            self._busy[key] = True
        else:
            self._waiting[key] = None
            self._changed.set()

    def add_later(self, key: K, seconds: float) -> None:
        """Add a key after a while; once, however often this is called meanwhile."""
        if key not in self._asleep:
            self._later.setdefault(key, seconds)
            self._changed.set()

    @property
    def idle(self) -> bool:
        return self._idle.is_set()

    async def settled(self) -> None:
        """Wait until there is nothing left to look at."""
        await self._idle.wait()

    async def run(self) -> None:
        """Handle keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._later:
                    key, seconds = self._later.popitem()
                    self._asleep.add(key)
                    group.create_task(self._wake_up(key, seconds))
                while self._waiting and len(self._busy) - self._paused < self.parallel:
                    key, _ = self._waiting.popitem(last=False)
                    self._busy[key] = False
                    group.create_task(self._work(key))

    async def _work(self, key: K) -> None:
        again = True  # also when this is cancelled: whoever runs the backlog next goes on
        try:
            again = not await self._handled(key)
        finally:
            if self._busy.pop(key) or again:
                self._waiting[key] = None
            elif not self._waiting and not self._busy:
                self._idle.set()
            self._changed.set()

    async def _handled(self, key: K) -> bool:
        try:
            await self.handle(key)
        except Exception as error:  # noqa: BLE001 - whatever went wrong with one key, the others go on
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            _report(key, error, failures)
            await self._pause(backoff_delay(failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
            return False
        self._failures.pop(key, None)
        return True

    async def _wake_up(self, key: K, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self._asleep.discard(key)
        self.add(key)

    async def _pause(self, seconds: float) -> None:
        self._paused += 1
        self._changed.set()
        try:
            await self.clock.sleep(seconds)
        finally:
            self._paused -= 1


def _report(key: Hashable, error: Exception, failures: int) -> None:
    """An answer of the API is part of life and worth a word only when it persists; anything else is a bug."""
    if not isinstance(error, ApiError):
        _log.error("handling %s failed", key, exc_info=error)
    elif failures >= 5:
        _log.warning("handling %s failed %d times in a row: %s", key, failures, error)
