"""Runs a reconcile over the keys of a queue.

A reconcile is given a key and nothing else. It looks at how things are now, not at what happened: ten changes or one,
seen or missed, in any order, lead to the same pass. It returns when to look again if nothing happens until then.

* One key is never reconciled twice at once; different keys are, by up to ``workers`` workers.
* A reconcile that fails is tried again after a pause that grows with every failure of that key. A failure is an
  exception. Having to wait for something is not one: that is a ``Result`` with a time, and its pauses do not grow.
* In a namespace that is being deleted nothing can be made. What is there is about to go, which is a change that leads
  to another pass; until then a failure for that reason is told once for the namespace, and not tried again soon.
* A pass decides anew when the next one is due, so timers set for the key before it are forgotten when it begins.
* What was there before the workers began is looked at when there is no news: after a restart everything is there, and
  hardly anything of it needs a hand, while whoever comes now is waiting.
* ``stop`` takes no more keys, lets running passes finish, and cancels those that take too long. What still waits is
  left: whoever takes over looks at everything.

Nothing a reconcile does can end a worker.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from sandpool.engine.clock import Clock, within
from sandpool.engine.logging import log_context
from sandpool.engine.metrics.controller import ERROR, REQUEUE_AFTER, SUCCESS
from sandpool.engine.ratelimit import Backoff, PerKeyRateLimit
from sandpool.engine.workqueue.delaying import DelayedAdds
from sandpool.engine.workqueue.queue import ShutDown, WorkQueue
from sandpool.kube.errors import ApiError

_log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


#: The priority of what has just changed, or is due; and of what was there when the controller began to work.
DEFAULT_PRIORITY: Final = 0
LOW_PRIORITY: Final = -100


#: What every API says of a namespace that is being deleted, where the reason of a failure is told in words.
TERMINATING: Final = "because it is being terminated"
_GOING: Final = re.compile(rf"namespace (\S+) {TERMINATING}")
# Seconds. Somebody's finalizer may keep a namespace for long, but nothing can be made in it all the while.
_UNTIL_GONE: Final = 300.0


class ReconcileIncomplete(Exception):
    """Something keeps a pass from doing all it should, and people have been told where they look for it. It is tried
    again like any failure, not before ``retry_after`` seconds if the API asked for that, and is not a bug."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# Failures that are part of life. Anything else is a bug and worth a traceback.
_EXPECTED = (ApiError, ConnectionError, TimeoutError, ReconcileIncomplete)


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a pass; look again after so many seconds even if nothing changes, or only if something does, and not
    before ``cooldown`` seconds whatever happens: the pass was a lot of work."""

    requeue_after: float | None = None
    cooldown: float = 0.0


DONE: Final = Result()


class ReconcileObserver(Protocol):
    """Whoever wants to know of every pass, such as ``ControllerMetrics``, whose words for a result are used."""

    def began(self) -> None: ...

    def ended(self, result: str, seconds: float) -> None: ...


class _Nobody:
    def began(self) -> None: ...

    def ended(self, result: str, seconds: float) -> None: ...


class Controller(Generic[K]):
    """``name`` is what metrics and log lines call it; ``retried`` is called whenever a failure sends a key back;
    ``per_second`` is how often one key may be looked at, see ``PerKeyRateLimit``."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result]],
        clock: Clock,
        random: Random,
        *,
        workers: int = 1,
        queue: WorkQueue[K] | None = None,
        observer: ReconcileObserver | None = None,
        retried: Callable[[], object] = lambda: None,
        per_second: int | None = None,
    ) -> None:
        self.name = name
        self.reconcile = reconcile
        self.clock = clock
        self.workers = workers
        self.queue: WorkQueue[K] = queue if queue is not None else WorkQueue()
        self.observer: ReconcileObserver = observer if observer is not None else _Nobody()
        self.retried = retried
        self.backoff: Backoff[K] = Backoff(random)
        self.delayed: DelayedAdds[K] = DelayedAdds(self.queue.add, clock)
        self.per_key_limit: PerKeyRateLimit[K] = PerKeyRateLimit(clock, per_second)
        # A controller has keys of one kind, so these are what that kind has cost.
        self.reconciles = 0  # begun
        self.failures = 0
        self._going: dict[str, float] = {}  # namespaces that are being deleted, and until when that is not told again
        self._tasks: list[asyncio.Task[None]] = []  # the workers, once run has begun
        self._stopping = False

    def enqueue(self, key: K, priority: int | None = None) -> None:
        """Have a key looked at. Unless a priority says otherwise it is news, or backlog if no worker has begun yet."""
        if priority is None:
            priority = DEFAULT_PRIORITY if self._tasks else LOW_PRIORITY
        self.queue.add(key, priority)

    def notice(self, key: K) -> None:
        """Have a key looked at because of something that passes over it write, unless one is under way: then it is
        most likely what that one has just written, and if it fails there is another."""
        if not self.queue.is_processing(key):
            self.enqueue(key)

    def enqueue_after(self, key: K, seconds: float, priority: int = DEFAULT_PRIORITY) -> None:
        """Enqueue later, unless a pass over the key begins before: it will say itself when to look again."""
        self.delayed.add_after(key, seconds, priority)

    async def run(self) -> None:
        """Work until stopped. When cancelled, running passes are cancelled too."""
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks = [
                    group.create_task(self._work(), name=f"{self.name} worker {number}")
                    for number in range(self.workers)
                ]
        finally:
            self.delayed.close()

    async def stop(self, grace: float) -> None:
        """Take no more keys. Returns when nothing runs any more: what has not finished after ``grace`` seconds is
        cancelled."""
        self._stopping = True
        self.queue.shut_down()
        if self._tasks:
            try:
                await within(self.clock, grace, _all(self._tasks))
            except TimeoutError:
                _log.warning("%s: %d passes did not finish within %g s", self.name, self.queue.processing, grace)
                for task in self._tasks:
                    task.cancel()
                await _all(self._tasks)
        self.delayed.close()

    async def _work(self) -> None:
        while not self._stopping:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            try:
                await self._pass(key)
            finally:
                self.queue.done(key)
            # A pass that found nothing to write has not waited for anything, and there may be thousands of them in a
            # row. Whoever else has something to do, such as renewing the lease, is let by.
            await self.clock.sleep(0)

    async def _pass(self, key: K) -> None:
        self.delayed.forget(key)
        if wait := self.per_key_limit.acquire(key):
            self._come_back(key, wait)
            return
        self.reconciles += 1
        begin = self.clock.monotonic()
        self.observer.began()
        outcome = ERROR
        try:
            with log_context(controller=self.name, key=str(key)):
                outcome = await self._outcome(key)
        finally:
            self.observer.ended(outcome, self.clock.monotonic() - begin)

    async def _outcome(self, key: K) -> str:
        try:
            result = await self.reconcile(key)
            after, cooldown = result.requeue_after, result.cooldown
        except asyncio.CancelledError as cancelled:
            if _is_being_cancelled():
                raise
            # Something the pass waited for was cancelled, not the pass.
            self._failed(key, cancelled)
            return ERROR
        except Exception as error:  # noqa: BLE001 - whatever went wrong with one key, the others go on
            self._failed(key, error)
            return ERROR
        self.backoff.forget(key)
        if cooldown:
            self.per_key_limit.cool_down(key, cooldown)
        if after is None:
            return SUCCESS
        self._come_back(key, after)
        return REQUEUE_AFTER

    def _failed(self, key: K, error: BaseException) -> None:
        self.failures += 1
        if TERMINATING in (text := str(error)):
            self._tell_once(_GOING.search(text), key)
            self._come_back(key, _UNTIL_GONE)
            return
        asked = error.retry_after if isinstance(error, ApiError | ReconcileIncomplete) else None
        pause = max(self.backoff.next_delay(key), asked or 0.0)
        expected = isinstance(error, _EXPECTED)
        _log.log(
            logging.WARNING if expected else logging.ERROR,
            "%s %s failed %d times in a row, next attempt in %.3g s: %s",
            self.name,
            key,
            self.backoff.failures(key),
            pause,
            str(error) or type(error).__name__,
            exc_info=None if expected else error,
        )
        self._come_back(key, pause)
        self.retried()

    def _tell_once(self, going: re.Match[str] | None, key: K) -> None:
        namespace, now = going[1] if going else "", self.clock.monotonic()
        self._going = {name: until for name, until in self._going.items() if until > now}
        level = logging.DEBUG if namespace in self._going else logging.INFO
        self._going.setdefault(namespace, now + _UNTIL_GONE)
        _log.log(level, "%s %s waits until namespace %s, which is being deleted, is gone", self.name, key, namespace)

    def _come_back(self, key: K, after: float) -> None:
        """What is due is news, also if it was backlog: else a busy queue would never come to it."""
        self.delayed.add_after(key, after, max(DEFAULT_PRIORITY, self.queue.priority(key)))


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
