"""Lets work pass that nobody waits for: when nobody is waiting, and one step per turn of the event loop.

Claims that people wait for and the refill of pools run in one event loop, and a loop serves whoever is ready in the
order in which they became so. Three hundred replacements that are ready at once would stand in the way of the next
claim with all the work they bring. Behind the gate only the first of them is ready at any time: a claim that comes
waits for one step at most, and the others go on one by one as the loop turns. When there is nothing else to do the
loop turns as fast as they pass, so nothing is lost.

While there is work in a queue that the background gate ``gives_way_to``, nobody passes at all: everything that is done
meanwhile makes somebody wait longer. But a load may never end, and then the pools would run dry. So when there has been
something to do for ``PATIENCE`` without a break, everybody passes as if nobody was waiting, until there is one; and
nobody is held up for longer than that, however many breaks there were. It must not be that much for each step: some of
what passes is done by few workers, and a worker who waits for a second at a time does little in a minute.

It is looked at whenever work of the queue is done and whenever somebody comes; and from time to time, for there may be
a single claim to look at whose request is not answered.

First come, first through. Requests of a transport can be sent through the gate, see ``BackgroundTransport``. Keys of
a queue that others share should stand aside rather than wait in the hands of a worker, see ``WorkQueue.hold_back``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from sandpool.engine.clock import Clock
from sandpool.engine.workqueue.queue import WorkQueue

#: Seconds. A burst that a pool was made for is served in less.
PATIENCE: Final = 1.0


class BackgroundGate:
    def __init__(self, clock: Clock, *, patience: float = PATIENCE) -> None:
        self.clock = clock
        self.patience = patience
        self._urgent: list[WorkQueue[Any]] = []
        # Who waits, and since when.
        self._waiting: deque[tuple[float, Callable[[], bool]]] = deque()
        # Whether somebody has passed in this turn of the loop, or was let through. ``_open`` will be called then.
        self._taken = False
        # Since when there has always been something urgent to do; None: there is nothing.
        self._busy_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def yield_to(self, queue: WorkQueue[Any]) -> None:
        """Let nobody pass while there is something to do in a queue, within reason."""
        self._urgent.append(queue)
        queue.when_done(self._review)

    async def turn(self) -> None:
        """Wait until it is the caller's turn."""
        if self._is_free():
            self._pass()
            return
        passing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait(lambda: _finish(passing))
        await passing

    def line_up(self, enter: Callable[[], bool]) -> None:
        """Have a function called when it is its turn. If nobody wants to pass any more it returns False, and it is the
        turn of the next one."""
        if not self._is_free():
            self._wait(enter)
        elif enter():
            self._pass()

    def _is_free(self) -> bool:
        return not self._taken and not self._waiting and not self._is_held_up()

    def _pass(self) -> None:
        self._taken = True
        asyncio.get_running_loop().call_soon(self._open)

    def _wait(self, enter: Callable[[], bool]) -> None:
        self._waiting.append((self.clock.monotonic(), enter))
        self._review()

    def _is_held_up(self) -> bool:
        if not any(queue.is_busy for queue in self._urgent):
            self._busy_since = None
            return False
        now = self.clock.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        return now - self._busy_since < self.patience

    def _review(self) -> None:
        self._is_held_up()  # a break is a break also if nobody waits
        if self._waiting and not self._taken:
            self._open()

    def _look_again(self) -> None:
        self._alarm = None
        self._review()

    def _open(self) -> None:
        """Let the first through who may pass, and then the others."""
        self._taken = False
        held_up = self._is_held_up()
        while self._waiting:
            since, enter = self._waiting[0]
            if held_up and self.clock.monotonic() - since < self.patience:
                if self._alarm is None:
                    self._alarm = asyncio.get_running_loop().call_later(self.patience, self._look_again)
                return
            self._waiting.popleft()
            if enter():
                self._pass()
                return


def _finish(passing: asyncio.Future[None]) -> bool:
    """Let somebody go on, unless who waited was cancelled."""
    if passing.done():
        return False
    passing.set_result(None)
    return True
