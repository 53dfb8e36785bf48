"""Runs expensive parts of requests in a thread, so that they do not hold the event loop.

A thread runs Python code while the event loop waits for input, and for ``SWITCH_SECONDS`` at a time while the event
loop has work. Requests of other users are therefore delayed by fractions of a millisecond, not by the whole work. The
price is a tenth of a millisecond per request, so small requests stay on the event loop.

One thread works for all users. Their work waits in a queue per user, and the users take turns.

What runs here must not touch what the event loop changes: it works on stored objects, which are immutable, and on the
request. A write is *prepared* here and passed to the store on the event loop (``rejoin_loop``). If the object has
changed meanwhile, ``Overtaken`` is raised and the request starts over.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from types import coroutine
from typing import Any, Final, Generic, TypeVar

from sandpool.api.resource import Object
from sandpool.server.registry.context import Neighbours, RegistryContext
from sandpool.server.turn_queue import TurnQueue

#: Seconds that the thread may keep the interpreter while the event loop waits for it. The default of Python is 5 ms.
SWITCH_SECONDS: Final = 0.0002
# The thread waits this long for an answer of the event loop, which is much longer than any step of it.
_ANSWER_SECONDS: Final = 60.0

T = TypeVar("T")
_REJOIN: Final = object()


class Overtaken(Exception):
    """The object that a prepared write is based on has changed meanwhile."""


@coroutine
def rejoin_loop() -> Generator[object, None, None]:
    """Continue on the event loop. May be awaited by work in the thread, once, before anything else."""
    yield _REJOIN


@dataclass(slots=True)
class _Job(Generic[T]):
    """Work that may be abandoned at any time: before the thread begins it, while it runs there, and afterwards."""

    work: Coroutine[Any, Any, T]
    begun: bool = False
    abandoned: bool = False
    _lock: Lock = field(default_factory=Lock)  # the thread begins the work, or the event loop closes it, never both

    def abandon(self) -> None:
        """Close the work, or have the thread close it."""
        with self._lock:
            self.abandoned = True
            begun = self.begun
        if not begun:
            self.work.close()

    def _begin(self) -> bool:
        with self._lock:
            self.begun = not self.abandoned
            return self.begun

    def first_step(self) -> tuple[bool, T | None]:
        """Run the work until it ends or rejoins the event loop; whether it has ended, and its result."""
        if not self._begin():
            return False, None
        try:
            awaited = self.work.send(None)
        except StopIteration as stop:
            return True, stop.value
        if self.abandoned:
            self.work.close()
        elif awaited is not _REJOIN:
            self.work.close()
            raise RuntimeError("work in the thread may await rejoin_loop() only")
        return False, None


class OffloadWorker:
    """The thread and its queues. ``user`` names the queue."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "offloaded requests")
        self._busy = False
        self._turns: TurnQueue[str] = TurnQueue()

    async def call(self, user: str, function: Callable[[], T]) -> T:
        """Call a function in the thread."""
        if self._busy:
            await self._turns.wait(user, give_back=self._next)
        self._busy = True
        switch = sys.getswitchinterval()
        try:
            sys.setswitchinterval(SWITCH_SECONDS)
            running = self._executor.submit(function)
        except BaseException:
            self._done(switch)
            raise
        loop = asyncio.get_running_loop()
        running.add_done_callback(lambda _: loop.call_soon_threadsafe(self._done, switch))
        return await asyncio.wrap_future(running)

    async def run(self, user: str, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread until it ends or awaits ``rejoin_loop``, then on the event loop."""
        job = _Job(work)
        try:
            ended, result = await self.call(user, job.first_step)
        except BaseException:
            job.abandon()
            raise
        if ended:
            return result  # type: ignore[return-value]
        return await _rest(work)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _done(self, switch: float) -> None:
        sys.setswitchinterval(switch)
        self._next()

    def _next(self) -> None:
        self._busy = self._turns.admit_next()


@coroutine
def _rest(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Drive a coroutine that was begun elsewhere."""
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            awaited = work.send(value) if error is None else work.throw(error)
            value = error = None
            try:
                value = yield awaited
            except BaseException as raised:  # noqa: BLE001 - passed on to the work
                error = raised
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        work.close()


class OffloadedContext(RegistryContext):
    """The context of verbs that run in the thread. Other objects are read by the event loop."""

    offloaded = True

    def __init__(self, context: RegistryContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(context.store, context.clock, context.rng, context.find_namespace)
        self.neighbours = _AskedNeighbours(context.neighbours, loop)
        self._loop = loop

    def on_loop(self, function: Callable[[], T]) -> T:
        """Call a function on the event loop, from the thread."""
        return _on_loop(self._loop, function)


class _AskedNeighbours(Neighbours):
    def __init__(self, neighbours: Neighbours, loop: asyncio.AbstractEventLoop) -> None:
        self._neighbours = neighbours
        self._loop = loop

    def get(self, group_resource: str, namespace: str | None, name: str) -> Object | None:
        return _on_loop(self._loop, lambda: self._neighbours.get(group_resource, namespace, name))

    def objects(self, group_resource: str) -> Iterator[Object]:
        return iter(_on_loop(self._loop, lambda: list(self._neighbours.objects(group_resource))))


def _on_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> T:
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the thread
            answer.set_exception(error)

    loop.call_soon_threadsafe(ask)
    return answer.result(_ANSWER_SECONDS)
