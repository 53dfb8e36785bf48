"""Our kinds as an aggregated API server of a cluster: store, verbs and all controllers in one process.

The order of the start matters, because kube-controller-manager believes what this server says. The store is opened
first, which locks the volume. Then the process waits for the leader lease in kube-apiserver, so that of two copies
with two volumes only one serves. Then it learns who may ask and which namespaces exist, and checks that the volume
belongs to this cluster (``volume``). Only then does it listen. Until that moment, and whenever the process is away,
kube-apiserver answers 503 for our kinds, and no collector takes that for the absence of an object.

The identity for the lease is kept on the volume: a process that starts on it again, under the same host name, is the
same candidate, because the lock of the volume proves that its predecessor has ended. So a restart does not wait for the
lease to expire.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from sandpool.api.kinds import API_SERVICES
from sandpool.api.resource import Key
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Middleware
from sandpool.engine.health import Checks, HealthServer
from sandpool.engine.leaderelection import LeaderElector, LeaseTiming
from sandpool.engine.metrics.process import export_leadership
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import Backoff
from sandpool.engine.tracing import Tracing
from sandpool.engine.transports import FencedTransport, ThrottledTransport
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.kube.group_router import GroupRouter
from sandpool.kube.transport import Transport
from sandpool.server.aggregated.authentication_config import AuthenticationConfig
from sandpool.server.aggregated.certificates import CHECK_SECONDS, ServingCertificate
from sandpool.server.aggregated.handler import ForwardedHandler
from sandpool.server.aggregated.kinds_server import GROUPS, KindsServer
from sandpool.server.aggregated.namespaces import NamespaceMirror
from sandpool.server.aggregated.registration import ApiServiceRegistration
from sandpool.server.aggregated.request_header import RequestHeaderAuthenticator, RequestHeaderConfig
from sandpool.server.aggregated.subject_access import SubjectAccess
from sandpool.server.aggregated.volume import check_volume
from sandpool.server.auth.impersonation import NoImpersonation
from sandpool.server.auth.private_files import write_private
from sandpool.server.http import HttpLimits, HttpServer
from sandpool.server.http.server import AuditSink
from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store

_log = logging.getLogger(__name__)

#: The user agent and field manager of the controllers.
CONTROLLERS: Final = "sandpool"
# All connections come from the few addresses of kube-apiserver, which opens one for each request in flight.
_LIMITS: Final = HttpLimits(strangers_per_address=1024)


@dataclass(frozen=True, slots=True)
class ApiServerOptions:
    """Options of the server, as opposed to those of the controllers in it."""

    data_dir: Path
    lease: str
    lease_namespace: str
    host: str = ""  # all addresses
    port: int = 6443
    names: tuple[str, ...] = ()  # by which kube-apiserver reaches the server, for its certificate
    health_address: str = "0"
    terms: LeaseTiming | None = None
    accept_empty: bool = False


class AggregatedProcess:
    """``start`` returns at once, ``wait`` raises what ends the process, ``stop`` returns when all is closed.

    ``transport`` leads to kube-apiserver; ``voting``, too, and is for the lease alone. The caller owns both.
    ``serving`` is set while requests are served.
    """

    def __init__(
        self,
        transport: Transport,
        voting: Transport,
        clock: Clock,
        rng: Random,
        options: ApiServerOptions,
        controllers: ControllerOptions | None = None,
        process_options: ProcessOptions | None = None,
        *,
        metrics: MetricsRegistry | None = None,
        tracing: Tracing | None = None,
        middleware: Sequence[Middleware[Key]] = (),
        audit: AuditSink | None = None,
    ) -> None:
        self.transport = transport
        self.voting = voting
        self.clock = clock
        self.rng = rng
        self.options = options
        self.controller_options = controllers
        self.process_options = process_options
        self.metrics = metrics
        self.tracing = tracing
        self.middleware = middleware
        self.audit = audit
        self.serving = asyncio.Event()
        self.port = 0  # the actual port, while serving
        self._waits_for = "the process is starting"
        self._client = Client(transport)
        health, ready = Checks("healthz", {"ping": lambda: ""}), Checks("readyz", {"serving": lambda: self._waits_for})
        self._health = HealthServer(options.health_address, {**health.pages(), **ready.pages()})
        self._living: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start. Raises ``OSError`` if the address for probes is taken, ``StoreInUse`` and ``StoreDamaged``."""
        options = self.options
        options.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        journal = Journal(options.data_dir)
        try:
            self._store = Store(journal)
            await self._health.start()
        except BaseException:
            journal.close()
            raise
        self._election = LeaderElector(
            Client(self.voting),
            options.lease,
            options.lease_namespace,
            _identity(options.data_dir),
            self.clock,
            self.rng,
            terms=options.terms,
        )
        if self.metrics is not None:
            export_leadership(self.metrics, self._election)
        self._living = asyncio.create_task(self._live(), name="aggregated API server")

    async def wait(self) -> None:
        """Wait until the process ends by itself, by failing: ``LeaseLost``, ``WrongVolume``, or a bug."""
        assert self._living is not None, "start first"
        await asyncio.wait([self._living])
        self._living.result()

    async def stop(self) -> None:
        if self._living is not None:
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)
            await self._store.close()
        await self._health.stop()

    async def _live(self) -> None:
        self._waits_for = "the leader lease"
        await self._election.lead(self._lead)

    async def _lead(self) -> None:
        """Serve until cancelled, or until a part fails."""
        options, clock, rng = self.options, self.clock, self.rng
        config = AuthenticationConfig(self._client, clock, rng)
        namespaces = NamespaceMirror(self._client, clock, rng)
        certificate = ServingCertificate(options.data_dir / "pki", options.names, clock)
        registration = ApiServiceRegistration(self._client, API_SERVICES, certificate.ca, clock, rng)
        async with AsyncExitStack() as stack:
            parts = _Parts(stack)
            parts.run(config.run())
            parts.run(namespaces.run())
            self._waits_for = "kube-apiserver: its ConfigMap extension-apiserver-authentication"
            await config.found.wait()
            self._waits_for = "kube-apiserver: its namespaces"
            await namespaces.synced.wait()
            self._waits_for = "kube-apiserver: which pods of sandboxes there are"
            await self._check_volume()
            server = KindsServer(self._store, namespaces.find, clock, rng, audit=self.audit)
            await server.start()
            stack.push_async_callback(server.stop)
            http = self._http(server, namespaces, config, certificate)
            await http.start()
            stack.push_async_callback(http.stop)
            self.port = http.port
            parts.run(registration.run())
            parts.run(self._renew(certificate, config, http))
            controllers = self._controllers(server)
            await controllers.start()
            stack.push_async_callback(controllers.stop)
            stack.callback(self._end_serving)
            self._waits_for = ""
            self.serving.set()
            _log.info("serving %s on port %d", " and ".join(GROUPS), http.port)
            parts.run(controllers.wait())
            await parts.ended()

    def _end_serving(self) -> None:
        self.serving.clear()
        self._waits_for = "the process is stopping"

    async def _check_volume(self) -> None:
        """Check the volume as soon as kube-apiserver answers."""
        pauses: Backoff[None] = Backoff(self.rng, first=0.5, longest=10.0)
        while True:
            try:
                return await check_volume(
                    self.options.data_dir, self._store, self._client, accept_empty=self.options.accept_empty
                )
            except (ApiError, OSError) as error:
                _log.warning("kube-apiserver did not say which pods exist: %s", error)
            await self.clock.sleep(pauses.next_delay(None))

    def _http(
        self,
        server: KindsServer,
        namespaces: NamespaceMirror,
        config: AuthenticationConfig,
        certificate: ServingCertificate,
    ) -> HttpServer:
        assert config.current is not None
        authenticator = RequestHeaderAuthenticator(config.current, self.clock)
        http = HttpServer(
            ForwardedHandler(server.handler, SubjectAccess(self._client, self.clock), namespaces, self._leads),
            authenticator,
            authorizer=NoImpersonation(),
            tls=certificate.tls(config.current.client_ca),
            limits=_LIMITS,
            host=self.options.host,
            port=self.options.port,
            audit=self.audit,
            clock=self.clock,
            superseded=lambda: self._store.superseded_bytes,
        )

        def follow(changed: RequestHeaderConfig) -> None:
            before, authenticator.config = authenticator.config, changed
            if changed.client_ca != before.client_ca:
                _log.info("the CA of the proxy has changed")
                http.replace_tls(certificate.tls(changed.client_ca), distrust=True)

        config.on_change = follow
        return http

    async def _renew(self, certificate: ServingCertificate, config: AuthenticationConfig, http: HttpServer) -> None:
        while True:
            await self.clock.sleep(CHECK_SECONDS)
            if certificate.renewed() and config.current is not None:
                _log.info("renewed the serving certificate")
                http.replace_tls(certificate.tls(config.current.client_ca), distrust=False)

    def _controllers(self, server: KindsServer) -> ControllerProcess:
        """The controllers, with our kinds in this process and all others at kube-apiserver."""
        other: Transport = FencedTransport(self.transport, self._leads)
        own = FencedTransport(server.transport(CONTROLLERS), self._leads)
        options = self.process_options or ProcessOptions()
        if options.rate is not None:  # a limit on requests to kube-apiserver, and not to this process
            other, options = ThrottledTransport(other, options.rate), replace(options, rate=None)
        return ControllerProcess(
            GroupRouter(GROUPS, own, other),
            self.clock,
            self.rng,
            self.controller_options,
            options,
            metrics=self.metrics,
            tracing=self.tracing,
            middleware=self.middleware,
        )

    def _leads(self) -> bool:
        return self._election.held


class _Parts:
    """Tasks that run until the exit stack closes. None of them ends before that unless it fails."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        self._stack.push_async_callback(_end, task)

    async def ended(self) -> None:
        """Wait until one of them ends, and raise its failure."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _identity(data_dir: Path) -> str:
    """The name of this volume in the lease. The host is part of it, so that a copy of the volume is another one."""
    path = data_dir / "identity"
    try:
        volume = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        volume = str(uuid.uuid4())
        write_private(path, f"{volume}\n".encode())
    return f"{socket.gethostname()}_{volume}"
