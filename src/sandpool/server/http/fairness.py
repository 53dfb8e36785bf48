"""Per-user limits and fair shares of the event loop for requests that arrive over HTTP.

One thread serves every user, so a user that sends many or expensive requests delays all others. Each user is a *flow*
with these bounds:

* **Concurrency.** ``limits.requests_per_user`` requests are served at once. Up to ``limits.queued_per_user`` more wait
  in arrival order. Further ones get 429 with Retry-After.
* **A slice per turn.** In one turn of the event loop a flow starts as many requests as fit into a slice of CPU time, by
  their average cost. The others wait for the next turn, and requests of other users come in between. Reading a
  request, serving it and writing its response count. CPU time beyond the slice is a debt that later slices pay
  (deficit round robin). A user that is alone has ``SLICE`` and no debts; one beside others has ``SHARED_SLICE``.
* **A pause after a long step.** No step can be interrupted. After one that took more than ``LONG`` seconds, the flow
  pauses ``PAUSE`` times as long, if another user was served in the last second. Large work is not expected on the
  event loop at all (see ``registry.offload``); the pause bounds the harm of what is left.
* **Streams, connections and body bytes** are counted per user.

CPU time is that of the thread, not time of the clock: other processes of a busy machine are not charged to the user.
In-process clients (the controllers and the node of ``sandpool up``) do not pass through here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final, TypeVar

from sandpool.kube.errors import TooManyRequests
from sandpool.server.http.limits import HttpLimits
from sandpool.server.turn_queue import TurnQueue

#: CPU seconds that one user may take in one turn of the event loop, alone.
SLICE: Final = 0.002
#: The same if another user was served in the last second. A request passes through several turns, up to seven for a
#: write, so it waits for several slices of each other user.
SHARED_SLICE: Final = 0.0005
#: The largest debt in slices.
MOST_DEBT: Final = 20
#: A step of a request that takes longer than this many CPU seconds is followed by a pause.
LONG: Final = 0.010
#: The length of the pause, as a multiple of the step.
PAUSE: Final = 10.0
#: The longest pause in seconds.
LONGEST_PAUSE: Final = 2.0
# A user counts as active for this long after its last request.
_ACTIVE_SECONDS: Final = 1.0
# Weight of the newest turn in the average cost of a flow's requests.
_NEWEST: Final = 0.2

T = TypeVar("T")


class Flow:
    """The share of one user."""

    __slots__ = (
        "admitted",
        "average",
        "buffered",
        "connections",
        "debt",
        "in_flight",
        "key",
        "last_served",
        "paused_until",
        "slice",
        "spent",
        "streams",
        "timer",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.connections = 0
        self.streams = 0  # watches and upgraded connections
        self.in_flight = 0  # requests that are being served, without streams
        self.buffered = 0  # bytes of request bodies
        self.slice = SLICE  # CPU seconds per turn
        self.debt = 0.0  # CPU seconds of earlier turns that count in this one
        self.spent = 0.0  # CPU seconds in this turn, with the debt
        self.admitted = 0  # requests that were started in this turn
        self.average = 0.0  # CPU seconds of a request
        self.paused_until = 0.0
        self.last_served = 0.0
        self.timer = False  # whether a turn after the pause is scheduled

    @property
    def unused(self) -> bool:
        return not (self.connections or self.streams or self.in_flight or self.buffered)


class FairQueue:
    """Admits requests of all flows. ``now`` is monotonic time, ``cpu`` the CPU time of this thread."""

    def __init__(
        self, limits: HttpLimits, now: Callable[[], float], cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self.limits = limits
        self._now = now
        self.cpu = cpu
        self._flows: dict[str, Flow] = {}
        self._turns: TurnQueue[Flow] = TurnQueue()
        self._spenders: dict[Flow, None] = {}  # flows that used CPU in this turn or have requests waiting
        self._turn: asyncio.Handle | None = None
        self._latest: Flow | None = None  # the flow that was served last
        self._before: Flow | None = None  # the last one that is not ``_latest``

    def __len__(self) -> int:
        return len(self._flows)

    def flow(self, key: str) -> Flow:
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key)
        return flow

    def release(self, flow: Flow) -> None:
        """Forget a flow that occupies nothing. A pause outlives its connections until it has passed."""
        if flow.unused and flow not in self._turns and flow.paused_until <= self._now():
            self._flows.pop(flow.key, None)

    # -- requests ----------------------------------------------------------------------------------------------------

    def must_wait(self, flow: Flow) -> bool:
        return (
            flow in self._turns
            or flow.spent >= flow.slice
            or flow.in_flight >= self.limits.requests_per_user
            or flow.paused_until > self._now()
        )

    def waiting(self, flow: Flow) -> int:
        return self._turns.count(flow)

    async def wait(self, flow: Flow) -> None:
        """Wait for the flow's turn, and count the request as being served. Raises ``TooManyRequests`` if too many
        requests of the flow wait already."""
        waiting = self.waiting(flow)
        if waiting >= self.limits.queued_per_user + flow.streams:
            raise too_many(f"{flow.key} has {waiting} requests waiting, which is the limit")
        self._schedule(flow)
        await self._turns.wait(flow, partial(self._enter, flow), partial(self.leave, flow))

    @staticmethod
    def _enter(flow: Flow) -> None:
        flow.in_flight += 1

    def leave(self, flow: Flow) -> None:
        """Count a request as served."""
        flow.in_flight -= 1
        if flow in self._turns:
            self._schedule(flow)
        elif not flow.connections:
            self.release(flow)

    async def next_turn(self, flow: Flow) -> None:
        """Make a stream wait if the flow's slice of this turn is used up."""
        if flow.spent >= flow.slice or flow.paused_until > self._now():
            self._schedule(flow)
            await self._turns.wait(flow)
        else:
            flow.admitted += 1

    def metered(self, flow: Flow, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Run a coroutine and charge the CPU time of its steps to the flow."""
        return _metered(self, flow, work)

    def charge(self, flow: Flow, seconds: float) -> None:
        """Count CPU seconds of one step."""
        flow.spent += seconds
        now = self._now()
        if flow is not self._latest:
            self._before, self._latest = self._latest, flow
        flow.last_served = now
        if seconds > LONG and self._others_active(flow, now):
            flow.paused_until = max(flow.paused_until, now + min(PAUSE * seconds, LONGEST_PAUSE))
        self._schedule(flow)

    def _others_active(self, flow: Flow, now: float) -> bool:
        other = self._before if flow is self._latest else self._latest
        return other is not None and now - other.last_served < _ACTIVE_SECONDS

    # -- turns -------------------------------------------------------------------------------------------------------

    def _schedule(self, flow: Flow) -> None:
        self._spenders[flow] = None
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Begin a new turn: every flow has its slice again, and starts as many waiting requests as fit into it."""
        self._turn = None
        spenders, self._spenders = self._spenders, {}
        now = self._now()
        for flow in spenders:
            self._settle(flow, now)
            waits = flow in self._turns
            if flow.paused_until > now:
                if waits:
                    self._continue_later(flow, flow.paused_until - now)
                continue
            if waits and flow.spent < flow.slice:
                self._admit(flow)
                waits = flow in self._turns and flow.in_flight < self.limits.requests_per_user
            if waits or flow.debt:
                self._schedule(flow)

    def _settle(self, flow: Flow, now: float) -> None:
        """Learn what a request costs, and carry what the flow has spent beyond its slice."""
        if flow.admitted:
            cost = (flow.spent - flow.debt) / flow.admitted
            flow.average += (_NEWEST if flow.average else 1.0) * (cost - flow.average)
            flow.admitted = 0
        shared = self._others_active(flow, now)
        flow.slice = SHARED_SLICE if shared else SLICE
        flow.debt = min(max(flow.spent - flow.slice, 0.0), MOST_DEBT * flow.slice) if shared else 0.0
        flow.spent = flow.debt

    def _continue_later(self, flow: Flow, seconds: float) -> None:
        def proceed() -> None:
            flow.timer = False
            self._schedule(flow)

        if not flow.timer:
            flow.timer = True
            asyncio.get_running_loop().call_later(seconds, proceed)

    def _admit(self, flow: Flow) -> None:
        count = max(1, int((flow.slice - flow.spent) / flow.average) if flow.average > 0 else 1)
        while count and flow.in_flight < self.limits.requests_per_user and self._turns.admit(flow):
            flow.admitted += 1
            count -= 1

    # -- other resources ---------------------------------------------------------------------------------------------

    def open_stream(self, flow: Flow) -> None:
        """Count a watch or an upgraded connection. Raises ``TooManyRequests``."""
        if flow.streams >= self.limits.streams_per_user:
            raise too_many(f"{flow.key} has {flow.streams} open watches and streams, which is the limit")
        flow.streams += 1

    def buffer(self, flow: Flow, count: int) -> None:
        """Count bytes of a request body. Raises ``TooManyRequests``."""
        if flow.buffered + count > self.limits.body_bytes_per_user:
            raise too_many(f"{flow.key} has too many bytes of request bodies in flight")
        flow.buffered += count


def too_many(message: str) -> TooManyRequests:
    return TooManyRequests(message, details={"retryAfterSeconds": 1})


@coroutine
def _metered(queue: FairQueue, flow: Flow, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    cpu = queue.cpu
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            began = cpu()
            try:
                awaited = work.send(value) if error is None else work.throw(error)
            finally:
                queue.charge(flow, cpu() - began)
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
