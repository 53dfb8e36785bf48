"""The HTTP server: accepts connections, enforces their deadlines and shuts them down."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from sandpool.engine.clock import Clock, SystemClock
from sandpool.engine.listener import Listener, Stranger
from sandpool.kube.errors import Unauthorized
from sandpool.server.auth.authenticator import PUBLIC_PATHS
from sandpool.server.auth.certificates import PeerCertificate
from sandpool.server.auth.groups import ANONYMOUS, authenticated
from sandpool.server.auth.impersonation import IMPERSONATION, impersonate
from sandpool.server.auth.rbac import Authorizer
from sandpool.server.http.connection import Connection
from sandpool.server.http.cycle import RequestCycle
from sandpool.server.http.fairness import FairQueue
from sandpool.server.http.limits import HttpLimits
from sandpool.server.http.response_head import HeadCache
from sandpool.server.http.unread import UnreadBytes
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.request.yaml_worker import YamlWorker

# Interval for checking deadlines and updating the Date header.
TICK_SECONDS = 1.0


class RequestHandler(Protocol):
    async def handle(self, request: ServerRequest) -> Response:
        """Answer one request; an ``ApiError`` becomes a Status answer."""
        ...


class Authenticator(Protocol):
    def authenticate(
        self,
        headers: Mapping[str, str],
        certificate: PeerCertificate | None,
        fields: Sequence[tuple[str, str]] = (),
    ) -> User | None:
        """The user of a request; None without credentials. Raises ``Unauthorized`` for invalid ones.

        ``fields`` are all headers but the most common ones, as pairs with names in lower case; a repeated header has a
        pair for each value."""
        ...


class AuditSink(Protocol):
    def record(self, cycle: RequestCycle, status: int, problem: str, seconds: float) -> None:
        """Record an answered request. Must neither block nor raise."""
        ...


class HttpServer:
    """HTTP/1.1 on one port, with or without TLS.

    ``start`` returns when the port is open; ``stop`` when every connection is closed, which takes at most ``grace``
    seconds and a moment.
    """

    def __init__(
        self,
        handler: RequestHandler,
        authenticator: Authenticator,
        *,
        authorizer: Authorizer,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: HttpLimits | None = None,
        audit: AuditSink | None = None,
        clock: Clock | None = None,
        cpu: Callable[[], float] = time.thread_time,
        superseded: Callable[[], int] = lambda: 0,
    ) -> None:
        """``superseded`` counts the bytes of objects that the store has replaced so far."""
        self.handler = handler
        self.authenticator = authenticator
        self.authorizer = authorizer
        self.tls = tls
        self.host = host
        self.port = port  # the actual port, once started
        self.limits = limits or HttpLimits()
        self.audit = audit
        self.clock = clock or SystemClock()
        self.now = self.clock.monotonic
        self.time = self.now()  # monotonic, as of the last tick: precise enough for deadlines
        self.heads = HeadCache()
        self.fairness = FairQueue(self.limits, self.now, cpu)
        self.unread = UnreadBytes(self.limits, superseded)
        self.yaml = YamlWorker()
        self.aborting = False  # the grace period is over: running requests are cancelled
        self._stopping = False
        self._connections: set[Connection] = set()
        self._local: set[Connection] = set()  # those of ``connect``
        self._orphans: set[asyncio.Task[None]] = set()  # writes of clients that have disconnected
        self._all_closed = asyncio.Event()
        self._listener: Listener | None = None
        self._ticker: asyncio.TimerHandle | None = None
        # Audit IDs are UUIDs made of a random prefix per process and a counter: a tenth of the cost of uuid4.
        self._audit_prefix = str(uuid.uuid4())[:24]
        self._audit_numbers = count(1)

    # -- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        listener = Listener(self._connection, host=self.host, port=self.port, tls=self.tls, limits=self.limits)
        await listener.start()
        self._listener = listener
        self.port = listener.port
        self._tick()

    async def connect(self, user: User) -> socket.socket:
        """Return a connection to this server, without TLS, on which every request is of ``user``. Raises
        ``ConnectionRefusedError`` if there are too many."""
        if len(self._local) >= self.limits.local_connections:
            raise ConnectionRefusedError("too many connections of other processes of this server")
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        connection = Connection(self, Stranger("", ours), PeerCertificate(authenticated(user), math.inf))
        self._local.add(connection)
        try:  # shielded, because uvloop forgets a connection whose making is cancelled
            await asyncio.shield(self.loop.connect_accepted_socket(lambda: connection, ours))
        except BaseException:
            theirs.close()
            raise
        return theirs

    async def stop(self, grace: float = 10.0) -> None:
        """Stop accepting, end watches, let requests in flight finish, and after ``grace`` seconds close the rest."""
        if self._listener is None or self._stopping:
            return
        self._stopping = True
        self._listener.close()
        for connection in list(self._connections):
            connection.end()
        await self._first_of(self._idle(), self.clock.sleep(grace))
        self.aborting = True
        for connection in list(self._connections):
            connection.abort()
        for task in self._orphans:
            task.cancel()
        await self._idle()
        if self._ticker is not None:
            self._ticker.cancel()
        await self._listener.wait_closed()

    def replace_tls(self, tls: ssl.SSLContext, *, distrust: bool) -> None:
        """Use other certificates for new connections. ``distrust`` ends the present ones, whose clients were verified
        with the old ones: each after its current request, a watch at once."""
        self.tls = tls
        if self._listener is not None:
            self._listener.tls = tls
        if distrust:
            for connection in list(self._connections - self._local):
                connection.end()

    def sweep(self) -> None:
        """Act on every deadline that has passed."""
        now = self.time = self.now()
        for connection in [c for c in self._connections if c.deadline <= now]:
            connection.expire()
        self.unread.sweep()

    def _tick(self) -> None:
        self.heads.set_date(self.clock.now())
        self.sweep()
        self._ticker = self.loop.call_later(TICK_SECONDS, self._tick)

    async def _first_of(self, *alternatives: Coroutine[Any, Any, None]) -> None:
        tasks = [self.loop.create_task(alternative) for alternative in alternatives]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _idle(self) -> None:
        while self._connections or self._orphans:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _check_idle(self) -> None:
        if not self._connections and not self._orphans:
            self._all_closed.set()

    # -- called by connections ---------------------------------------------------------------------------------------

    def _connection(self, stranger: Stranger) -> Connection:
        return Connection(self, stranger)

    def admit(self, connection: Connection) -> bool:
        """Register a new connection; False if the server must refuse it. A stranger makes room for it if there is
        one."""
        self._connections.add(connection)
        if len(self._connections) > self.limits.connections:
            return self._stranger_makes_room(connection) and not self._stopping
        return not self._stopping

    def _stranger_makes_room(self, newcomer: Connection) -> bool:
        assert self._listener is not None
        strangers = self._listener.strangers
        strangers.remove(newcomer.stranger)  # so that it does not make room for itself
        if not strangers.make_room():
            return False
        strangers.add(newcomer.stranger)
        return True

    def authenticated(self, stranger: Stranger) -> None:
        """The client of a connection is known now."""
        if self._listener is not None:
            self._listener.strangers.remove(stranger)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._local.discard(connection)
        self.authenticated(connection.stranger)
        self._check_idle()

    def adopt(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task that outlives its connection."""
        self._orphans.add(task)
        task.add_done_callback(self._discard_orphan)

    def _discard_orphan(self, task: asyncio.Task[None]) -> None:
        self._orphans.discard(task)
        self._check_idle()

    def audit_id(self, headers: Mapping[str, str]) -> str:
        given = headers.get("audit-id")
        if given is not None and 0 < len(given) <= 64 and given.isascii() and given.isprintable():
            return given
        return f"{self._audit_prefix}{next(self._audit_numbers):012x}"

    def identify(
        self, cycle: RequestCycle, fields: Sequence[tuple[str, str]], certificate: PeerCertificate | None
    ) -> None:
        """Authenticate the caller and apply impersonation. Raises ``Unauthorized`` or ``Forbidden``."""
        request = cycle.request
        user = self.authenticator.authenticate(request.headers, certificate, fields)
        if user is None:
            if request.path not in PUBLIC_PATHS:
                raise Unauthorized("Unauthorized")
            user = ANONYMOUS
        cycle.caller = request.user = user
        if fields and any(name.startswith(IMPERSONATION) for name, _ in fields):
            request.user = impersonate(user, fields, self.authorizer)

    def record(self, cycle: RequestCycle, status: int, problem: str) -> None:
        """Only called when ``audit`` is set."""
        if self.audit is not None:
            self.audit.record(cycle, status, problem, self.now() - cycle.started)
