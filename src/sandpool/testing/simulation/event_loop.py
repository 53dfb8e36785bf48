"""An event loop in which chance decides what runs next, and time is what the loop says it is.

asyncio runs callbacks in the order in which they became ready. That is one of many orders that are possible, and a
program that works in it may break in another: on a machine that is busy elsewhere, or after a library adds one more
``await``. This loop draws the next callback from all that are ready, from one seeded source, so a thousand seeds try a
thousand orders and each of them can be had again.

**What is legal.** Two callbacks that are ready are independent as far as asyncio promises anything: every future calls
its callbacks "soon", and tasks, locks, queues, groups and gathered results are built on futures alone. So any order of
the ready ones is one that asyncio could have produced, with one more turn of the loop here or there. ``disorder`` says
how often the order is left: 0 is plain asyncio.

**Time.** Nothing waits. When nothing is ready the clock jumps to the next timer; when there is none either, nothing
will ever happen again, and ``Deadlock`` says so. There are no threads, sockets or signals; what somebody wants to have
done in a thread is done at once.

**Death.** A ``Process`` is everything that was started by one coroutine, found by the context that tasks and callbacks
inherit. Killing it means that nothing of it runs again, not even the clean-up of a ``finally``: that is what SIGKILL
does, and cancelling is not.

**Replays.** Nothing here depends on addresses or on the hashes of texts. Tasks hash by their number, since asyncio
keeps them in sets, and cancels those in the order of the set.
"""

from __future__ import annotations

import asyncio
from asyncio import BaseEventLoop, events
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from datetime import datetime, timedelta
from heapq import heappop
from itertools import count
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from sandpool.testing.clock import START

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Deadlock(Exception):
    """Nobody can run, and no timer will change that."""


class Livelock(Exception):
    """More has happened than can be of use to anybody."""


class Process:
    """What runs in it can be killed as one. ``run`` starts its first coroutine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        context = copy_context()
        context.run(_process.set, self)
        return asyncio.get_running_loop().create_task(work, name=self.name, context=context)

    def kill(self) -> None:
        self.is_alive = False

    @staticmethod
    def current() -> Process | None:
        return _process.get()


class _Task(asyncio.Task[T]):
    """A task that stands in sets by its number."""

    number = 0

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulationLoop(BaseEventLoop):
    """``steps`` callbacks have been run; more than ``patience`` of them are a ``Livelock``."""

    def __init__(self, random: Random, *, disorder: float = 1.0, patience: int = 60_000) -> None:
        super().__init__()
        self.random = random
        self.disorder = disorder
        self.patience = patience
        self.steps = 0
        self._now = 0.0
        self._ready: list[asyncio.Handle] = []  # asyncio only appends to it
        self._scheduled: list[asyncio.TimerHandle]
        self._stopping: bool
        self._limbo: list[asyncio.Handle] = []  # what the dead would have done
        self._numbers = count(1)
        self.tasks: dict[asyncio.Task[Any], None] = {}  # that have not ended, in the order of their beginning
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        return self._now

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T] | Generator[Any, None, T],
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = _Task.__new__(_Task)
        task.number = next(self._numbers)
        task.__init__(work, loop=loop, context=context)  # type: ignore[misc]  # asyncio keeps it in a set from here on
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def _run_once(self) -> None:
        if self.steps >= self.patience:
            raise Livelock(f"{self.patience} steps and no end, {self._now:g} s after the beginning")
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0].cancelled():
            heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not ready:
            if self._stopping:
                return
            if not scheduled:
                raise Deadlock(f"after {self.steps} steps everybody waits for somebody else")
            self._now = max(self._now, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now:
            timer = heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        handle = ready.pop(self._draw(len(ready)))
        if handle.cancelled():
            return
        process: Process | None = handle._context.get(_process)  # type: ignore[attr-defined]
        if process is not None and not process.is_alive:
            self._limbo.append(handle)
            return
        self.steps += 1
        handle._run()

    def _draw(self, choices: int) -> int:
        if choices == 1 or (self.disorder < 1.0 and self.random.random() >= self.disorder):
            return 0
        return int(self.random.random() * choices)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, then end everything it has left behind, and close the loop."""
        previous = events._get_running_loop()
        events._set_running_loop(None)  # a test may itself run in a loop
        try:
            return self.run_until_complete(work)
        finally:
            try:
                self._bury()
            finally:
                self.close()
                events._set_running_loop(previous)

    def _bury(self) -> None:
        """Cancel all tasks, also those of the dead, who get to clean up after all: nobody watches any more."""
        self.patience = self.steps + 1_000_000
        for handle in self._limbo:
            process: Process = handle._context[_process]  # type: ignore[attr-defined]
            process.is_alive = True
            self._ready.append(handle)
        self._limbo.clear()
        for _ in range(3):  # a task may begin another one while it ends
            left = [task for task in self.tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.wait(left))
        self.run_until_complete(self.shutdown_asyncgens())

    # --- what asyncio expects of a loop, and there is nothing to do about ---------------------------------------------

    def _write_to_self(self) -> None:
        """There is no selector to wake."""

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """The work is done at once, so there is no executor."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            future.set_exception(error)
        return future


class LoopClock:
    """The ``Clock`` of a simulation: its loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: datetime = START) -> None:
        self.loop = loop
        self.start = start

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.loop.time())

    def monotonic(self) -> float:
        return self.loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
