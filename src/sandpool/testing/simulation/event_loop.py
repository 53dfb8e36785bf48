"""An asyncio event loop with a random but reproducible schedule and virtual time.

asyncio runs callbacks in the order in which they became ready. Other orders are possible, and a program that works in
this one may break in another: on a busy machine, or after a library adds one more ``await``. This loop draws the next
callback from all ready ones with a seeded generator. A thousand seeds try a thousand orders, and each can be replayed.

**Legal orders.** asyncio promises no order between two ready callbacks: every future calls its callbacks "soon", and
tasks, locks, queues, groups and gathered results are built on futures alone. So asyncio could have produced any order
of the ready callbacks, with one more iteration of the loop here or there. ``disorder`` is the probability of a random
draw: 0 is plain asyncio.

**Time.** The loop never waits. When no callback is ready, the clock jumps to the next timer. When there is no timer
either, the loop raises ``Deadlock``. There are no threads, sockets or signals; work for an executor runs at once.

**Kills.** A ``Process`` is everything that one coroutine started, identified by the context that tasks and callbacks
inherit. After a kill none of its code runs again, not even a ``finally``. That models SIGKILL; cancelling does not.

**Replays.** Nothing depends on memory addresses or string hashes. Tasks hash by their number, because asyncio keeps
them in sets and cancels them in set order.
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
    """No callback is ready and no timer is set."""


class Livelock(Exception):
    """The simulation ran more steps than its limit."""


class Process:
    """A group of tasks that can be killed together. ``run`` starts its first coroutine."""

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
    """A task that hashes by its number."""

    number = 0

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulationLoop(BaseEventLoop):
    """``steps`` counts the callbacks that ran; more than ``max_steps`` of them raise ``Livelock``."""

    def __init__(self, rng: Random, *, disorder: float = 1.0, max_steps: int = 60_000) -> None:
        super().__init__()
        self.rng = rng
        self.disorder = disorder
        self.max_steps = max_steps
        self.steps = 0
        self._now = 0.0
        self._ready: list[asyncio.Handle] = []  # asyncio only appends to it
        self._scheduled: list[asyncio.TimerHandle]
        self._stopping: bool
        self._suppressed: list[asyncio.Handle] = []  # callbacks of killed processes
        self._numbers = count(1)
        self.tasks: dict[asyncio.Task[Any], None] = {}  # unfinished tasks, in the order of their creation
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
        if self.steps >= self.max_steps:
            raise Livelock(f"{self.max_steps} steps without an end, at {self._now:g} s")
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0].cancelled():
            heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not ready:
            if self._stopping:
                return
            if not scheduled:
                raise Deadlock(f"after {self.steps} steps every task waits for another")
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
            self._suppressed.append(handle)
            return
        self.steps += 1
        handle._run()

    def _draw(self, choices: int) -> int:
        if choices == 1 or (self.disorder < 1.0 and self.rng.random() >= self.disorder):
            return 0
        return int(self.rng.random() * choices)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, cancel the tasks it left behind and close the loop."""
        previous = events._get_running_loop()
        events._set_running_loop(None)  # a test may itself run in a loop
        try:
            return self.run_until_complete(work)
        finally:
            try:
                self._clean_up()
            finally:
                self.close()
                events._set_running_loop(previous)

    def _clean_up(self) -> None:
        """Cancel all tasks. Those of killed processes run their clean-up too: the simulation is over."""
        self.max_steps = self.steps + 1_000_000
        for handle in self._suppressed:
            process: Process = handle._context[_process]  # type: ignore[attr-defined]
            process.is_alive = True
            self._ready.append(handle)
        self._suppressed.clear()
        for _ in range(3):  # a task may start another one while it ends
            left = [task for task in self.tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.wait(left))
        self.run_until_complete(self.shutdown_asyncgens())

    # --- the rest of the event loop interface -------------------------------------------------------------------------

    def _write_to_self(self) -> None:
        """There is no selector to wake."""

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run the function at once, without an executor."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the awaiting task gets it
            future.set_exception(error)
        return future


class LoopClock:
    """The ``Clock`` of a simulation; it reads the loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: datetime = START) -> None:
        self.loop = loop
        self.start = start

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.loop.time())

    def monotonic(self) -> float:
        return self.loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
