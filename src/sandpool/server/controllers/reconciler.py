"""Runs the reconcile function of one of the server's own controllers over its keys.

* A key is reconciled at least once after it was enqueued; enqueued ten times before that, it is reconciled once.
* A key is never reconciled twice at the same time: enqueued meanwhile, it is reconciled again afterwards.
* A failed reconcile is retried with exponential back-off.

Keys are reconciled concurrently, because a reconcile mostly waits for the disk and one sync serves many writes.

engine's ``Controller`` was tried in its place and rejected for now. With it the simulated worlds interleave
differently, and four mutations of the sandbox controllers were no longer found within their seeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from sandpool.engine.clock import Clock
from sandpool.engine.controller import Result
from sandpool.engine.ratelimit import backoff_delay
from sandpool.kube.errors import ApiError

_log = logging.getLogger(__name__)

_FIRST_DELAY: Final = 0.005
_LONGEST_DELAY: Final = 60.0

K = TypeVar("K", bound=Hashable)


class Reconciler(Generic[K]):
    def __init__(self, reconcile: Callable[[K], Awaitable[Result]], clock: Clock, *, parallel: int = 64) -> None:
        self.reconcile = reconcile
        self.clock = clock
        self.parallel = parallel
        # In order of arrival, disjoint from _busy. A plain dict would walk over removed keys to find the first.
        self._waiting: OrderedDict[K, None] = OrderedDict()
        self._busy: dict[K, bool] = {}  # being reconciled or backing off; True: enqueued meanwhile
        self._failures: dict[K, int] = {}  # consecutive failures
        self._backing_off = 0  # keys of _busy that sleep after a failure and do not count towards ``parallel``
        self._later: dict[K, float] = {}  # delays, in seconds, of keys whose timer has not started
        self._delayed: set[K] = set()  # keys whose timer runs
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()  # set exactly while _waiting and _busy are empty
        self._idle.set()

    def enqueue(self, key: K) -> None:
        self._idle.clear()
        if key in self._busy:
            self._busy[key] = True
        else:
            self._waiting[key] = None
            self._changed.set()

    def enqueue_after(self, key: K, seconds: float) -> None:
        """Enqueue a key after a delay. A running timer of the key is kept."""
        if key not in self._delayed:
            self._later.setdefault(key, seconds)
            self._changed.set()

    @property
    def idle(self) -> bool:
        return self._idle.is_set()

    async def settled(self) -> None:
        """Wait until no key is enqueued, being reconciled or backing off."""
        await self._idle.wait()

    async def run(self) -> None:
        """Reconcile keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._later:
                    key, seconds = self._later.popitem()
                    self._delayed.add(key)
                    group.create_task(self._enqueue_later(key, seconds))
                while self._waiting and len(self._busy) - self._backing_off < self.parallel:
                    key, _ = self._waiting.popitem(last=False)
                    self._busy[key] = False
                    group.create_task(self._work(key))

    async def _work(self, key: K) -> None:
        again = True  # also on cancellation: the next run continues
        try:
            again = not await self._succeeds(key)
        finally:
            if self._busy.pop(key) or again:
                self._waiting[key] = None
            elif not self._waiting and not self._busy:
                self._idle.set()
            self._changed.set()

    async def _succeeds(self, key: K) -> bool:
        try:
            result = await self.reconcile(key)
        except Exception as error:  # noqa: BLE001 - a failure of one key must not stop the others
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            _log_failure(key, error, failures)
            await self._back_off(backoff_delay(failures, first=_FIRST_DELAY, longest=_LONGEST_DELAY))
            return False
        self._failures.pop(key, None)
        if result.requeue_after is not None:
            self.enqueue_after(key, result.requeue_after)
        return True

    async def _enqueue_later(self, key: K, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self._delayed.discard(key)
        self.enqueue(key)

    async def _back_off(self, seconds: float) -> None:
        self._backing_off += 1
        self._changed.set()
        try:
            await self.clock.sleep(seconds)
        finally:
            self._backing_off -= 1


def _log_failure(key: Hashable, error: Exception, failures: int) -> None:
    """API errors are expected and logged only when they persist; other exceptions are bugs."""
    if not isinstance(error, ApiError):
        _log.error("reconciling %s failed", key, exc_info=error)
    elif failures >= 5:
        _log.warning("reconciling %s failed %d times in a row: %s", key, failures, error)
