"""The node agent's side of exec agents: chooses the one that starts the next command in a container.

The first command of a container starts an exec agent, which stays for a while for further commands. If it is stuck
starting a command or runs many, another exec agent is started for the next command. Of idle ones, one per container and
a few in all are kept: an exec agent takes memory, which its container is charged for, and counts as one of the
container's processes.

Processes in a container can stop a command before it has begun, and its exec agent with it, forever. Each such command
costs the node agent and the launcher open descriptors, so a container with several stuck exec agents gets no more.
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

# Seconds for which an idle exec agent stays, and the maximum number of idle ones.
IDLE_SECONDS: Final = 30.0
MAX_IDLE: Final = 16
# Seconds without a reply after which an exec agent counts as busy.
_BUSY_SECONDS: Final = 0.1
#: Seconds without a reply after which an exec agent counts as stuck, and the maximum of stuck ones per container.
STUCK_SECONDS: Final = 10.0
MAX_STUCK: Final = 8
#: Commands that one exec agent runs at a time: the ends of so many are not reported while it is stuck.
MAX_COMMANDS: Final = 24


class ExecAgentConnection:
    """The connection to an exec agent that runs or is being started. ``on_idle`` is called when it becomes idle, and
    ``on_end`` once, when it is gone or dismissed."""

    def __init__(
        self,
        launcher: LauncherClient,
        enter_request: EnterRequest,
        on_idle: Callable[[ExecAgentConnection], None],
        on_end: Callable[[ExecAgentConnection], None],
    ) -> None:
        # Without a cgroup, the exec agent would not end with its container.
        self.may_idle = not enter_request.since
        self._on_end = on_end
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ProcessChannel(ours, self._lost, lambda: on_idle(self), _kill)
        self._dismissed = False
        self._starting = asyncio.create_task(
            self._start(launcher, enter_request, theirs), name="start of an exec agent"
        )

    @property
    def is_idle(self) -> bool:
        return self._channel.pending == 0

    def is_free(self, now: float) -> bool:
        """Whether it would start another command at once."""
        return self._channel.pending < MAX_COMMANDS and now - self._channel.unanswered_since <= _BUSY_SECONDS

    def is_stuck(self, now: float) -> bool:
        """Whether it will probably never start another command."""
        return now - self._channel.unanswered_since > STUCK_SECONDS

    async def run(self, request: ExecRequest, stdio: list[int], now: float) -> Child:
        """Raises as ``ProcessChannel.submit`` does."""
        return await self._channel.submit(request.encode(), stdio, now)

    def dismiss(self, why: str = "the exec agent was dismissed", ended: int | None = None) -> None:
        """Dismiss the exec agent. Its commands keep running; ``ended`` is their wait status if they were killed."""
        if not self._dismissed:
            self._dismissed = True
            self._channel.close(why, ended)
            self._on_end(self)

    def _lost(self) -> None:
        """The exec agent is gone: it only ends when everything in its container is killed."""
        self.dismiss("the container is not running", signal.SIGKILL)

    async def _start(self, launcher: LauncherClient, enter_request: EnterRequest, theirs: socket.socket) -> None:
        with theirs:
            try:
                # Close our copy of their end: while it is open, this side does not see the exec agent end.
                child = await launcher.launch(enter_request._replace(stdio=[theirs.fileno()]), theirs.close)
            except RuntimeFailure as error:
                self.dismiss(str(error))
            else:
                child.close()


class ExecAgentPool:
    """The exec agents of many containers. Any object can stand for a container."""

    def __init__(self, launcher: LauncherClient, clock: Clock) -> None:
        self.launcher = launcher
        self.clock = clock
        self._agents: dict[object, list[ExecAgentConnection]] = {}
        # The idle ones and since when, the longest idle first.
        self._idle: dict[ExecAgentConnection, float] = {}
        self._expiring: asyncio.Task[None] | None = None

    async def send(
        self, container: object, request: ExecRequest, stdio: list[int], enter_request: Callable[[], EnterRequest]
    ) -> Child:
        """Start a command. ``enter_request`` makes the request for a new exec agent, if one is needed. Raises
        ``NoSuchCommand``, and ``RuntimeFailure`` for any other failure."""
        while True:
            agent = self._free(container) or self._enter(container, enter_request())
            self._idle.pop(agent, None)
            try:
                return await agent.run(request, stdio, self.clock.monotonic())
            except ConnectionError:  # it is gone and did not get the request
                agent.dismiss()

    def dismiss(self, container: object) -> None:
        """Dismiss the exec agents of a container in which everything was killed."""
        for agent in list(self._agents.get(container, ())):
            agent.dismiss(ended=signal.SIGKILL)

    def close(self) -> None:
        """Dismiss all exec agents. Their commands keep running."""
        for agent in [agent for inside in self._agents.values() for agent in inside]:
            agent.dismiss()
        if self._expiring is not None:
            self._expiring.cancel()

    def _free(self, container: object) -> ExecAgentConnection | None:
        now = self.clock.monotonic()
        return next((agent for agent in self._agents.get(container, ()) if agent.is_free(now)), None)

    def _enter(self, container: object, enter_request: EnterRequest) -> ExecAgentConnection:
        now = self.clock.monotonic()
        if sum(agent.is_stuck(now) for agent in self._agents.get(container, ())) >= MAX_STUCK:
            raise RuntimeFailure("commands do not start in the container any more: a process in it stops them")
        agent = ExecAgentConnection(
            self.launcher, enter_request, partial(self._became_idle, container), partial(self._forget, container)
        )
        self._agents.setdefault(container, []).append(agent)
        return agent

    def _forget(self, container: object, agent: ExecAgentConnection) -> None:
        inside = self._agents[container]
        inside.remove(agent)
        if not inside:
            del self._agents[container]
        self._idle.pop(agent, None)

    def _became_idle(self, container: object, agent: ExecAgentConnection) -> None:
        others = [other for other in self._agents[container] if other is not agent]
        if not agent.may_idle or any(other.is_idle for other in others):
            agent.dismiss()
            return
        self._idle[agent] = self.clock.monotonic()
        if len(self._idle) > MAX_IDLE:
            next(iter(self._idle)).dismiss()
        if self._expiring is None:
            self._expiring = asyncio.create_task(self._expire_idle(), name="idle exec agents")

    async def _expire_idle(self) -> None:
        while self._idle:
            agent, since = next(iter(self._idle.items()))
            if (left := since + IDLE_SECONDS - self.clock.monotonic()) > 0:
                await self.clock.sleep(left)
            else:
                agent.dismiss()
        self._expiring = None


def _kill(child: Child) -> None:
    """Kill a command whose caller was cancelled."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
    child.close()
