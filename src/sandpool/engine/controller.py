"""Controller: runs a reconcile function over the keys of a work queue.

A reconcile is given a key and nothing else. It compares the current state with the desired state and does not depend on
the events that led to it: ten changes or one, seen or missed, in any order, have the same result. It returns when to
reconcile again if nothing changes until then.

* A key is never reconciled twice at the same time; different keys are, by up to ``workers`` workers.
* A failed reconcile is retried with back-off per key. A failure is an exception. Waiting for something is not a
  failure: that is a ``Result`` with ``requeue_after``, which does not grow.
* ``TerminalError`` is not retried until the object changes.
* A reconcile in a namespace that is being deleted cannot create anything. The deletion of the objects enqueues the key
  again; until then such a failure is logged once per namespace and retried rarely.
* A reconcile decides anew when the next one is due, so timers set for the key before it begins are dropped.
* Keys enqueued before the workers start have low priority: after a restart every object is enqueued, few of them need
  work, and a user may be waiting for a new object.
* ``stop`` takes no more keys, lets running reconciles finish and cancels those that take too long. Keys that wait are
  dropped, because the next leader reconciles everything.

An exception of a reconcile never ends a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from sandpool.api.resource import Key
from sandpool.engine.clock import Clock, within
from sandpool.engine.logging import log_context
from sandpool.engine.metrics.controller import ERROR, PANIC, REQUEUE_AFTER, SUCCESS, TERMINAL, TIMEOUT
from sandpool.engine.ratelimit import Backoff, PerKeyRateLimit
from sandpool.engine.workqueue.delaying import DelayedAdds
from sandpool.engine.workqueue.queue import ShutDown, WorkQueue
from sandpool.kube.errors import ApiError, is_namespace_terminating

_log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


#: Priority of keys that have changed or are due, and of keys that were enqueued before the workers started. The values
#: are those of controller-runtime.
DEFAULT_PRIORITY: Final = 0
LOW_PRIORITY: Final = -100


# Seconds between attempts in a namespace that is being deleted. A finalizer may keep the namespace for long.
_TERMINATING_DELAY: Final = 300.0


class TerminalError(Exception):
    """A failure that a retry cannot mend. The key is reconciled again when its object changes."""


class ReconcileIncomplete(Exception):
    """A reconcile could not finish, and the status of the object reports why.

    It is retried with back-off, and not before ``retry_after`` seconds if the API asked for that. It is an expected
    failure, so the log has no traceback. ``namespace_terminating``: the API refused a create for that cause.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, namespace_terminating: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.namespace_terminating = namespace_terminating


# Expected failures. Anything else is a bug: it is logged with a traceback and counted as a panic.
_EXPECTED = (ApiError, ConnectionError, TimeoutError, ReconcileIncomplete, TerminalError)


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a reconcile.

    The key is reconciled again after ``requeue_after`` seconds, with None only when something changes; and in no case
    before ``cooldown`` seconds, for a reconcile that is expensive.
    """

    requeue_after: float | None = None
    cooldown: float = 0.0


DONE: Final = Result()

Reconcile = Callable[[K], Awaitable[Result]]

#: Wraps a reconcile, for example in a tracing span. The first argument is the name of the controller.
Middleware = Callable[[str, Reconcile[K]], Reconcile[K]]


class ReconcileObserver(Protocol):
    """Observes every reconcile, for example to export metrics, in the terms of ``metrics.controller``."""

    def began(self) -> None: ...

    def ended(self, result: str, seconds: float, error_kind: str = "") -> None: ...


class _NoObserver:
    def began(self) -> None: ...

    def ended(self, result: str, seconds: float, error_kind: str = "") -> None: ...


class Controller(Generic[K]):
    """``name`` identifies the controller in metrics and logs. ``per_second`` limits the reconciles of one key, see
    ``PerKeyRateLimit``. The first of ``middleware`` is the outermost. A controller that meets conflicts in ordinary
    operation does not log the first ``quiet_failures`` expected failures of a key in a row."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile[K],
        clock: Clock,
        rng: Random,
        *,
        workers: int = 1,
        queue: WorkQueue[K] | None = None,
        observer: ReconcileObserver | None = None,
        per_second: int | None = None,
        middleware: Sequence[Middleware[K]] = (),
        quiet_failures: int = 0,
    ) -> None:
        for wrap in reversed(middleware):
            reconcile = wrap(name, reconcile)
        self.name = name
        self.reconcile = reconcile
        self.clock = clock
        self.workers = workers
        self.queue: WorkQueue[K] = queue if queue is not None else WorkQueue()
        self.observer: ReconcileObserver = observer if observer is not None else _NoObserver()
        self.backoff: Backoff[K] = Backoff(rng)
        self.delayed: DelayedAdds[K] = DelayedAdds(self.queue.add, clock)
        self.per_key_limit: PerKeyRateLimit[K] = PerKeyRateLimit(clock, per_second)
        self.quiet_failures = quiet_failures
        self.reconciles = 0  # begun
        self.failures = 0
        # Namespaces that are being deleted, and until when that is not logged again.
        self._terminating: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []  # the workers; empty before ``run``
        self._stopping = False

    def enqueue(self, key: K, priority: int | None = None) -> None:
        """Enqueue a key, with low priority if the workers have not started yet and no priority is given."""
        if priority is None:
            priority = DEFAULT_PRIORITY if self._tasks else LOW_PRIORITY
        self.queue.add(key, priority)

    def enqueue_after(self, key: K, seconds: float, priority: int = DEFAULT_PRIORITY) -> None:
        """Enqueue a key later, unless it is reconciled before: that reconcile decides when the next one is due."""
        self.delayed.add_after(key, seconds, priority)

    async def run(self) -> None:
        """Reconcile until stopped. Cancellation cancels running reconciles too."""
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks = [
                    group.create_task(self._work(), name=f"{self.name} worker {number}")
                    for number in range(self.workers)
                ]
        finally:
            self.delayed.close()

    async def stop(self, grace: float) -> None:
        """Take no more keys, wait up to ``grace`` seconds for running reconciles, then cancel the rest."""
        self._stopping = True
        self.queue.shut_down()
        if self._tasks:
            try:
                await within(self.clock, grace, _all(self._tasks))
            except TimeoutError:
                _log.warning(
                    "%s: %d reconciles did not finish within %g s; cancelling them",
                    self.name,
                    self.queue.processing,
                    grace,
                )
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
                await self._reconcile(key)
            finally:
                self.queue.done(key)
            # A reconcile without a write never waits, and there may be thousands in a row. Let other tasks run, such as
            # the renewal of the leader lease.
            await self.clock.sleep(0)

    async def _reconcile(self, key: K) -> None:
        self.delayed.forget(key)
        if wait := self.per_key_limit.acquire(key):
            self._requeue(key, wait)
            return
        self.reconciles += 1
        begin = self.clock.monotonic()
        self.observer.began()
        result, error_kind = ERROR, ""
        try:
            with log_context(controller=self.name, key=str(key)):
                result, error_kind = await self._outcome(key)
        finally:
            self.observer.ended(result, self.clock.monotonic() - begin, error_kind)

    async def _outcome(self, key: K) -> tuple[str, str]:
        """Reconcile a key and arrange for its next reconcile. Returns the result and the kind of error."""
        try:
            result = await self.reconcile(key)
            after, cooldown = result.requeue_after, result.cooldown
        except asyncio.CancelledError as cancelled:
            if _is_being_cancelled():
                raise
            # An operation that the reconcile awaited was cancelled, not the reconcile.
            return ERROR, self._failed(key, cancelled)
        except Exception as error:  # noqa: BLE001 - a failure with one key must not stop the others
            return ERROR, self._failed(key, error)
        self.backoff.forget(key)
        if cooldown:
            self.per_key_limit.cool_down(key, cooldown)
        if after is None:
            return SUCCESS, ""
        self._requeue(key, after)
        return REQUEUE_AFTER, ""

    def _failed(self, key: K, error: BaseException) -> str:
        """Log a failure and arrange for the retry. Returns the kind of error."""
        self.failures += 1
        if _is_namespace_terminating(error):
            self._log_terminating(key)
            self._requeue(key, _TERMINATING_DELAY)
            return ""
        if isinstance(error, TerminalError):
            self.backoff.forget(key)
            _log.warning("%s %s failed and is not retried: %s", self.name, key, error)
            return TERMINAL
        retry_after = error.retry_after if isinstance(error, ApiError | ReconcileIncomplete) else None
        delay = max(self.backoff.next_delay(key), retry_after or 0.0)
        expected, failures = isinstance(error, _EXPECTED), self.backoff.failures(key)
        level = logging.DEBUG if failures <= self.quiet_failures else logging.WARNING
        _log.log(
            level if expected else logging.ERROR,
            "%s %s failed %d times in a row, next attempt in %.3g s: %s",
            self.name,
            key,
            failures,
            delay,
            str(error) or type(error).__name__,
            exc_info=None if expected else error,
        )
        self._requeue(key, delay)
        self.queue.retried()
        if isinstance(error, TimeoutError):
            return TIMEOUT
        return "" if expected else PANIC

    def _log_terminating(self, key: K) -> None:
        now = self.clock.monotonic()
        namespace = key.namespace if isinstance(key, Key) else ""
        self._terminating = {name: until for name, until in self._terminating.items() if until > now}
        level = logging.DEBUG if namespace in self._terminating else logging.INFO
        self._terminating.setdefault(namespace, now + _TERMINATING_DELAY)
        _log.log(level, "%s %s waits: its namespace is being deleted", self.name, key)

    def _requeue(self, key: K, after: float) -> None:
        """Enqueue later, with default priority at least: a busy queue would never get to a low-priority key."""
        self.delayed.add_after(key, after, max(DEFAULT_PRIORITY, self.queue.priority(key)))


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_namespace_terminating(error: BaseException) -> bool:
    if isinstance(error, ReconcileIncomplete):
        return error.namespace_terminating
    return is_namespace_terminating(error)
