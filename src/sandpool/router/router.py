"""The router: listens, finds the sandbox a request is for, and passes it on if its sender may go there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from sandpool.engine.clock import Clock
from sandpool.router.destination import AUTHORIZATION, DEFAULT_TIMEOUT, Destination, RequestRejected, destination
from sandpool.router.downstream import Downstream
from sandpool.router.headers import RequestHeaders
from sandpool.router.metrics import RouterMetrics
from sandpool.router.targets import Target
from sandpool.router.upstream import Dial, Upstream, UpstreamPool

#: Pauses before a port is tried again that nobody listens on yet: a pod can be ready before its program is.
PAUSES: Final = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)

_HEALTH: Final = b"/healthz"
_SWEEP: Final = 5.0
#: Seconds after which a client's connection without a request is closed; so long, too, the head of one may take.
IDLE: Final = 120.0

#: Who may go where: given the Authorization header and the destination, raises ``RequestRejected``.
Authorizer = Callable[[str, Destination], Awaitable[None]]


class Directory(Protocol):
    def find(self, wanted: Destination) -> Target:
        """Raises ``RequestRejected``."""
        ...


async def allow_all(authorization: str, wanted: Destination) -> None:
    """The guard of a router that only those can reach who may go everywhere."""


class Router:
    """``start`` returns when it listens, ``stop`` when every connection is closed."""

    def __init__(
        self,
        targets: Directory,
        dial: Dial,
        clock: Clock,
        metrics: RouterMetrics,
        *,
        guard: Authorizer = allow_all,
        longest: float = DEFAULT_TIMEOUT,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self.targets = targets
        self.clock = clock
        self.metrics = metrics
        self.guard = guard
        self.longest = longest
        self.pauses = pauses
        self.upstreams = UpstreamPool(dial, clock)
        self.connections: set[Downstream] = set()
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def ports(self) -> list[int]:
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> asyncio.Server:
        """May be called for several addresses. ``close`` gives one up again."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Downstream(self), host, port, ssl=tls, backlog=1024)
        self._servers.append(server)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name="idle connections of the router")
        return server

    def close(self, server: asyncio.Server) -> None:
        """Listen there no longer. Who is connected stays so."""
        server.close()
        self._servers.remove(server)

    async def stop(self, grace: float = 10.0) -> None:
        """Let requests under way finish, for as long as ``grace``."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.end()
        end = self.clock.monotonic() + grace
        while self.connections and self.clock.monotonic() < end:
            await self.clock.sleep(0.05)
        for connection in list(self.connections):
            connection.transport.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        self.upstreams.close()

    @property
    def is_open(self) -> bool:
        """Whether everybody may pass."""
        return self.guard is allow_all

    def wanted(self, method: bytes, target: bytes, headers: RequestHeaders) -> Destination | None:
        """Where a request is to go; None if it is for the router itself. Raises ``RequestRejected``."""
        if target == _HEALTH and method in (b"GET", b"HEAD"):
            return None
        if not target.startswith(b"/") and target != b"*":
            raise RequestRejected(400, "Only a path can be asked for here.")
        if headers.wanted is None:
            headers.wanted = destination(headers.text, self.longest)
        return headers.wanted

    async def check(self, headers: RequestHeaders, wanted: Destination) -> None:
        """Raises ``RequestRejected`` unless its sender may go there."""
        try:
            await self.guard(headers.text.get(AUTHORIZATION, ""), wanted)
        except RequestRejected:
            self.metrics.decided(False)
            raise

    async def reach(self, wanted: Destination, found: Target, *, repeatable: bool) -> Upstream:
        """A connection to the sandbox. Raises ``OSError``, or ``RequestRejected`` if the sandbox is gone meanwhile."""
        for pause in self.pauses:
            try:
                return await self.upstreams.take(found, wanted.port, repeatable=repeatable)
            except ConnectionRefusedError:
                self.metrics.retried()
                await self.clock.sleep(pause)
                found = self.targets.find(wanted)
        return await self.upstreams.take(found, wanted.port, repeatable=repeatable)

    async def _sweep(self) -> None:
        while True:
            await self.clock.sleep(_SWEEP)
            self.upstreams.sweep()
            since = self.clock.monotonic() - IDLE
            for connection in [each for each in self.connections if each.rests_since(since)]:
                connection.transport.close()
