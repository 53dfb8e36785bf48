"""The agent's side of porters: who lets the next command into a container.

The first command of a container brings a porter with it, which stays for a while in case there are more. While it is
busy with one that it cannot start, others do not wait for it for long: another porter is sent in, as it is when one has
many that run. Of those that have nothing to do one stays, and no more than a few in all: a porter takes memory, which
its container is charged for, and is one of the processes that the container may have.

Whoever is in a container can stop commands before they have begun, and their porter with them, for good. For each of
these the agent and the launcher keep something open. So where a few are stuck for long, nobody else is sent in.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from sandpool.engine.clock import Clock
from sandpool.node.launcher.channel import Child, ProcessChannel
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.enter import EnterRequest
from sandpool.node.launcher.exec_agent import ExecRequest
from sandpool.node.runtimes.runtime import RuntimeFailure

# Seconds for which a porter stays that has nothing to do, and how many of those there may be.
STAY: Final = 30.0
MOST: Final = 16
# Seconds after which an errand that was not begun is taken to be stuck.
_STUCK: Final = 0.1
#: Seconds after which it is taken to be stuck for good, and how many porters of one container may be.
LOST: Final = 10.0
MOST_LOST: Final = 8
#: Commands that one porter has at a time: so many are not heard of while it is stuck.
CROWD: Final = 24


class ExecAgentConnection:
    """One that is in its container, or on its way there. ``on_rest`` is called when it has nothing more to do, and
    ``on_end`` once, when it is gone or sent away."""

    def __init__(
        self,
        launcher: LauncherClient,
        entry: EnterRequest,
        on_rest: Callable[[ExecAgentConnection], None],
        on_end: Callable[[ExecAgentConnection], None],
    ) -> None:
        # Where a container is no cgroup, nobody would end the porter with it.
        self.may_stay = not entry.since
        self._on_end = on_end
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._exchange = ProcessChannel(ours, self._lost, lambda: on_rest(self), _kill)
        self._left = False
        self._coming = asyncio.create_task(self._come(launcher, entry, theirs), name="porter on its way")

    @property
    def is_idle(self) -> bool:
        return self._exchange.pending == 0

    def is_free(self, now: float) -> bool:
        """Whether it would take another errand at once."""
        return self._exchange.pending < CROWD and now - self._exchange.unanswered_since <= _STUCK

    def is_lost(self, now: float) -> bool:
        """Whether there is no hope that it will take another errand."""
        return now - self._exchange.unanswered_since > LOST

    async def run(self, request: ExecRequest, stdio: list[int], now: float) -> Child:
        """Raises as ``Exchange.order`` does."""
        return await self._exchange.order(request.encode(), stdio, now)

    def leave(self, why: str = "nobody is let in any more", ended: int | None = None) -> None:
        """What it has started lives on. ``ended`` is how that has ended, if it has."""
        if not self._left:
            self._left = True
            self._exchange.close(why, ended)
            self._on_end(self)

    def _lost(self) -> None:
        """Nobody ends a porter but who ends everything in its container."""
        self.leave("the container does not run", signal.SIGKILL)

    async def _come(self, launcher: LauncherClient, entry: EnterRequest, theirs: socket.socket) -> None:
        with theirs:
            try:
                # As long as we have their end as well, nobody hears that they are gone.
                child = await launcher.launch(entry._replace(stdio=[theirs.fileno()]), theirs.close)
            except RuntimeFailure as error:
                self.leave(str(error))
            else:
                child.close()


class ExecAgentPool:
    """Those of many containers, each known by whatever stands for it."""

    def __init__(self, launcher: LauncherClient, clock: Clock) -> None:
        self.launcher = launcher
        self.clock = clock
        self._inside: dict[object, list[ExecAgentConnection]] = {}
        # Those of them that have nothing to do, and since when; the longest first.
        self._resting: dict[ExecAgentConnection, float] = {}
        self._ageing: asyncio.Task[None] | None = None

    async def send(
        self, container: object, request: ExecRequest, stdio: list[int], entry: Callable[[], EnterRequest]
    ) -> Child:
        """Have a command executed. ``entry`` says how to get in, if nobody is there. Raises ``NoSuchCommand``, and
        ``RuntimeFailure`` if anything else is in the way."""
        while True:
            agent = self._free(container) or self._enter(container, entry())
            self._resting.pop(agent, None)
            try:
                return await agent.run(request, stdio, self.clock.monotonic())
            except ConnectionError:  # it is gone, and has not got this
                agent.leave()

    def dismiss(self, container: object) -> None:
        """Everything in it was killed."""
        for agent in list(self._inside.get(container, ())):
            agent.leave(ended=signal.SIGKILL)

    def close(self) -> None:
        """What was started lives on."""
        for agent in [agent for inside in self._inside.values() for agent in inside]:
            agent.leave()
        if self._ageing is not None:
            self._ageing.cancel()

    def _free(self, container: object) -> ExecAgentConnection | None:
        now = self.clock.monotonic()
        return next((agent for agent in self._inside.get(container, ()) if agent.is_free(now)), None)

    def _enter(self, container: object, entry: EnterRequest) -> ExecAgentConnection:
        now = self.clock.monotonic()
        if sum(agent.is_lost(now) for agent in self._inside.get(container, ())) >= MOST_LOST:
            raise RuntimeFailure("commands do not begin in the container any more: something in it stops them")
        agent = ExecAgentConnection(
            self.launcher, entry, partial(self._rest, container), partial(self._forget, container)
        )
        self._inside.setdefault(container, []).append(agent)
        return agent

    def _forget(self, container: object, agent: ExecAgentConnection) -> None:
        inside = self._inside[container]
        inside.remove(agent)
        if not inside:
            del self._inside[container]
        self._resting.pop(agent, None)

    def _rest(self, container: object, agent: ExecAgentConnection) -> None:
        others = [other for other in self._inside[container] if other is not agent]
        if not agent.may_stay or any(other.is_idle for other in others):
            agent.leave()
            return
        self._resting[agent] = self.clock.monotonic()
        if len(self._resting) > MOST:
            next(iter(self._resting)).leave()
        if self._ageing is None:
            self._ageing = asyncio.create_task(self._age(), name="resting porters")

    async def _age(self) -> None:
        while self._resting:
            agent, since = next(iter(self._resting.items()))
            if (left := since + STAY - self.clock.monotonic()) > 0:
                await self.clock.sleep(left)
            else:
                agent.leave()
        self._ageing = None


def _kill(child: Child) -> None:
    """A command goes when who asked for it goes."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
    child.close()
