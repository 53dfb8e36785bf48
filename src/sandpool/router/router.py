"""The router: listens for clients, resolves the sandbox that a request names, and forwards authorized requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sandpool.engine.clock import Clock
from sandpool.kube.pod_access import RETRY_DELAYS
from sandpool.router import signed_urls
from sandpool.router.authorization import Authorizer, Pending, ScopedTokenAuthorizer, allow_all
from sandpool.router.destination import AUTHORIZATION, DEFAULT_TIMEOUT, Destination, RequestRejected, parse_destination
from sandpool.router.downstream import Downstream, Peer
from sandpool.router.headers import RequestHeaders
from sandpool.router.loopback import check_loopback_request
from sandpool.router.metrics import RouterMetrics
from sandpool.router.targets import SandboxAsleep, Target
from sandpool.router.tokens import ALL
from sandpool.router.upstream import Dial, Upstream, UpstreamPool

#: Connections that wait to be accepted.
BACKLOG: Final = 1024
_HEALTH: Final = b"/healthz"
_SWEEP_SECONDS: Final = 5.0
#: Seconds after which a connection without a request is closed, and which the head of a request may take.
IDLE_TIMEOUT: Final = 120.0
HEAD_TIMEOUT: Final = 30.0
# When the router is full, connections that are idle for this long make room, checked this often.
_EVICTABLE_SECONDS: Final = 1.0

#: Whether a TCP connection, given by the addresses of its client and of the router, proves that its client is trusted.
TrustCheck = Callable[[tuple[Any, ...], tuple[Any, ...]], bool]


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """``max_timeout`` is the longest time a response may take, in seconds. ``allowed_hosts`` are names besides those of
    the loopback interface by which clients may address the router there."""

    max_timeout: float = DEFAULT_TIMEOUT
    retry_delays: Sequence[float] = RETRY_DELAYS
    max_connections: int = 8192
    max_connections_per_address: int = 2048
    allowed_hosts: frozenset[str] = frozenset()


class Resolver(Protocol):
    def find(self, destination: Destination) -> Target:
        """Raises ``RequestRejected``."""
        ...


#: Reads the sandbox of a destination from the API. Returns whether it did, so that resolving it again may succeed.
Refresh = Callable[[Destination], Awaitable[bool]]

#: Returns the pod of a sandbox that slept, once it can be reached. Raises ``RequestRejected``.
WakeForRequest = Callable[[Destination, SandboxAsleep], Awaitable[Target]]

# Rejections of a resolver that a client can get because its own watch is ahead of the router's.
_PERHAPS_STALE: Final = (404, 409, 503)


def trust_none(peer: tuple[Any, ...], local: tuple[Any, ...]) -> bool:
    return False


class Router:
    """``listen`` starts it, ``stop`` returns when every connection is closed."""

    def __init__(
        self,
        targets: Resolver,
        dial: Dial,
        clock: Clock,
        metrics: RouterMetrics,
        *,
        authorizer: Authorizer = allow_all,
        trusts: TrustCheck = trust_none,
        options: RouterOptions | None = None,
        refresh: Refresh | None = None,
        wake: WakeForRequest | None = None,
    ) -> None:
        self.targets = targets
        self.refresh = refresh
        self.wake = wake
        self.clock = clock
        self.metrics = metrics
        self.authorizer = authorizer
        self.trusts = trusts
        self.options = options or RouterOptions()
        self.upstreams = UpstreamPool(dial, clock)
        self.connections: set[Downstream] = set()
        self._per_address: Counter[str] = Counter()
        self._evicted_at = float("-inf")
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def ports(self) -> list[int]:
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> asyncio.Server:
        """Accept connections at an address, one of possibly several."""
        loop = asyncio.get_running_loop()
        return self._serve(await loop.create_server(lambda: Downstream(self), host, port, ssl=tls, backlog=BACKLOG))

    async def listen_on(self, sock: socket.socket) -> asyncio.Server:
        """Accept connections of a listening socket, which the router then owns."""
        loop = asyncio.get_running_loop()
        return self._serve(await loop.create_server(lambda: Downstream(self), sock=sock, backlog=BACKLOG))

    def _serve(self, server: asyncio.Server) -> asyncio.Server:
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="router: close idle connections")
        return server

    async def connect_forwarded(self, granted: str) -> socket.socket:
        """Return a connection to this router for a client that the API server has authorized; see ``Peer``."""
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        try:  # shielded, because uvloop forgets a connection whose making is cancelled
            await asyncio.shield(self.accept_forwarded(ours, granted))
        except BaseException:
            theirs.close()
            raise
        return theirs

    async def accept_forwarded(self, sock: socket.socket, granted: str) -> None:
        """Serve a connection of a client that the API server has authorized; see ``Peer``."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: Downstream(self, granted=granted), sock)

    def close(self, server: asyncio.Server) -> None:
        """Stop listening at one address. Its connections stay."""
        server.close()
        self._servers.remove(server)

    async def stop(self, grace: float = 10.0) -> None:
        """Stop listening and let requests in service finish for at most ``grace`` seconds."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.drain()
        end = self.clock.monotonic() + grace
        while self.connections and self.clock.monotonic() < end:
            await self.clock.sleep(0.05)
        for connection in list(self.connections):
            connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self.upstreams.close()

    # --- connections -------------------------------------------------------------------------------------------------

    def admit(self, connection: Downstream) -> None:
        """Count a new connection. Raises ``RequestRejected`` if there are too many."""
        peer, options = connection.peer, self.options
        if peer.granted != ALL and self._per_address[peer.address] >= options.max_connections_per_address:
            raise RequestRejected(503, f"Too many connections from {peer.address}.")
        if len(self.connections) >= options.max_connections:
            self._evict_idle()
            if len(self.connections) >= options.max_connections:
                raise RequestRejected(503, "Too many connections.")
        self.connections.add(connection)
        if peer.granted != ALL:
            self._per_address[peer.address] += 1

    def forget(self, connection: Downstream) -> None:
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        peer = connection.peer
        if peer.granted != ALL:
            self._per_address[peer.address] -= 1
            if not self._per_address[peer.address]:
                del self._per_address[peer.address]

    def _evict_idle(self) -> None:
        """Close an eighth of the connections, the longest idle first. At most once a second, because it visits all."""
        now = self.clock.monotonic()
        if now - self._evicted_at < _EVICTABLE_SECONDS:
            return
        self._evicted_at = now
        idle = [(since, id(each), each) for each in self.connections if (since := each.idle_since) is not None]
        for since, _, connection in sorted(idle)[: max(self.options.max_connections // 8, 1)]:
            if now - since >= _EVICTABLE_SECONDS:
                connection.transport.abort()
                self.forget(connection)

    async def _sweep(self) -> None:
        while True:
            await self.clock.sleep(_SWEEP_SECONDS)
            self.upstreams.close_expired()
            now = self.clock.monotonic()
            for connection in list(self.connections):
                connection.close_if_expired(now - IDLE_TIMEOUT, now - HEAD_TIMEOUT)

    # --- requests ----------------------------------------------------------------------------------------------------

    def destination(self, method: bytes, target: bytes, headers: RequestHeaders, peer: Peer) -> Destination | None:
        """Read where a request goes, None if it is for the router itself. Raises ``RequestRejected``."""
        if target == _HEALTH and method in (b"GET", b"HEAD") and not headers.url_label:
            return None
        if method == b"CONNECT":
            raise RequestRejected(405, "CONNECT is not supported.")
        if not target.startswith(b"/") and target != b"*":
            raise RequestRejected(400, "The target of a request must be a path.")
        if headers.url_label:
            grant, _ = self._url_grant(method, target, headers)
            timeout = self.options.max_timeout
            return Destination(grant.namespace, grant.sandbox, grant.port, timeout, by_url=True)
        if headers.destination is None:
            if signed_urls.label_of(signed_urls.host_of(headers.text.get("origin", ""))):
                raise RequestRejected(403, "Pages of a sandbox reach that sandbox only.")
            # The result is kept with the headers, and those belong to one connection: the peer is always the same.
            if peer.via_loopback:
                check_loopback_request(headers.text, self.allowed_hosts)
            headers.destination = parse_destination(headers.text, self.options.max_timeout)
        return headers.destination

    def entrance(self, method: bytes, target: bytes, headers: RequestHeaders) -> bytes | None:
        """The response to a browser that opens a signed URL, without its last line; None if the request is another.
        Raises ``RequestRejected``."""
        if not signed_urls.has_token(target) or method not in (b"GET", b"HEAD") or headers.upgrade:
            return None
        if "text/html" not in headers.text.get("accept", ""):
            return None
        grant, token = self._url_grant(method, target, headers)
        return signed_urls.entrance(target, token, int(grant.until - self.clock.now().timestamp()))

    def _url_grant(self, method: bytes, target: bytes, headers: RequestHeaders) -> tuple[signed_urls.UrlGrant, str]:
        """The grant of the signed URL of a request, with its token. Raises ``RequestRejected``."""
        signer = self.authorizer.signer if isinstance(self.authorizer, ScopedTokenAuthorizer) else None
        if signer is None:
            raise RequestRejected(403, "This router has no secret for URLs.")
        origin = headers.text.get("origin")
        if origin is not None and signed_urls.host_of(origin) != headers.text["host"]:
            raise RequestRejected(403, "Requests of web pages from other sites are not accepted.")
        rejection = RequestRejected(401, "The URL is incomplete or was changed.")
        for token in signed_urls.tokens_of(target, headers.text):
            try:
                now = self.clock.now().timestamp()
                grant = signed_urls.check_token(signer, token, headers.url_label, now)
                if token not in signed_urls.tokens_of(target, {}):
                    signed_urls.check_site(method, headers.text)
                return grant, token
            except RequestRejected as error:
                rejection = error
        self.metrics.decided(False)
        raise rejection

    @property
    def allowed_hosts(self) -> frozenset[str]:
        return self.options.allowed_hosts

    def authorize(self, headers: RequestHeaders, destination: Destination, peer: Peer) -> Pending | None:
        """Return None if the client may send the request, or an awaitable that ends when that is known. Both this call
        and the awaitable raise ``RequestRejected``."""
        if destination.by_url or peer.reaches(destination.namespace) or self.authorizer is allow_all:
            return None
        try:
            pending = self.authorizer(headers.text.get(AUTHORIZATION, ""), destination, peer.address)
        except RequestRejected:
            self.metrics.decided(False)
            raise
        return None if pending is None else self._authorized(pending)

    async def _authorized(self, pending: Pending) -> None:
        try:
            await pending
        except RequestRejected:
            self.metrics.decided(False)
            raise

    def may_be_stale(self, rejection: RequestRejected) -> bool:
        """Whether the resolver may accept the same request after ``refresh`` or ``wake``."""
        if isinstance(rejection, SandboxAsleep):
            return self.wake is not None
        return self.refresh is not None and rejection.status in _PERHAPS_STALE

    async def find_current(self, destination: Destination) -> Target:
        """Find the pod of a sandbox. If there is none, ask the API, once: a client may have seen a claim become ready
        before the router did. If the sandbox sleeps, wait until it was resumed. Raises ``RequestRejected``."""
        try:
            return await self._find_awake(destination)
        except SandboxAsleep:
            raise
        except RequestRejected as rejection:
            if self.refresh is None or not self.may_be_stale(rejection) or not await self.refresh(destination):
                raise
        return await self._find_awake(destination)

    async def _find_awake(self, destination: Destination) -> Target:
        try:
            return self.targets.find(destination)
        except SandboxAsleep as asleep:
            if self.wake is None:
                raise
            return await self.wake(destination, asleep)

    async def connect(self, destination: Destination, target: Target, *, repeatable: bool) -> Upstream:
        """Connect to the sandbox, or to its next pod if it falls asleep meanwhile. Raises ``OSError``, or
        ``RequestRejected`` if the sandbox is gone."""
        try:
            return await self._connect(destination, target, repeatable=repeatable)
        except SandboxAsleep as asleep:
            if self.wake is None:
                raise
            target = await self.wake(destination, asleep)
        return await self._connect(destination, target, repeatable=repeatable)

    async def _connect(self, destination: Destination, target: Target, *, repeatable: bool) -> Upstream:
        for delay in self.options.retry_delays:
            try:
                return await self.upstreams.acquire(target, destination.port, repeatable=repeatable)
            except ConnectionRefusedError:
                self.metrics.retried(target.namespace)
                await self.clock.sleep(delay)
                target = self.targets.find(destination)
        return await self.upstreams.acquire(target, destination.port, repeatable=repeatable)
