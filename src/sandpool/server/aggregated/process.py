"""Our kinds as an aggregated API server of a cluster: store, verbs and all controllers in one process.

The store is opened first, which locks the volume. Then the process waits for the leader lease in kube-apiserver, so
that of two copies with two volumes only one serves. Then the server starts (``aggregated_server``), and with it the
controllers. Until that moment, and whenever the process is away, kube-apiserver answers 503 for our kinds, and no
collector takes that for the absence of an object.

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

from sandpool.api.resource import Key
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Middleware
from sandpool.engine.health import Checks, HealthServer
from sandpool.engine.leaderelection import LeaderElector, LeaseTiming
from sandpool.engine.metrics.controller import export_leadership
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.tracing import Tracing
from sandpool.engine.transports import FencedTransport, ThrottledTransport
from sandpool.kube.client import Client
from sandpool.kube.group_router import GroupRouter
from sandpool.kube.late_binding import Binder
from sandpool.kube.transport import Transport
from sandpool.server.aggregated.aggregated_server import AggregatedServer, ServingOptions
from sandpool.server.aggregated.kinds_server import GROUPS
from sandpool.server.aggregated.volume import LeaseName, Volume
from sandpool.server.aggregated.volume_record import StampedTransport
from sandpool.server.auth.private_files import write_private
from sandpool.server.http.server import AuditSink
from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store

_log = logging.getLogger(__name__)

#: The user agent and field manager of the controllers.
CONTROLLERS: Final = "sandpool"


@dataclass(frozen=True, slots=True)
class ApiServerOptions:
    """Options of the server, as opposed to those of the controllers in it."""

    serving: ServingOptions
    lease: str
    lease_namespace: str
    health_address: str = "0"
    terms: LeaseTiming | None = None


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
        binder: Binder | None = None,
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
        self.binder = binder
        self.serving = asyncio.Event()
        self._server: AggregatedServer | None = None
        health, ready = Checks("healthz", {"ping": lambda: ""}), Checks("readyz", {"serving": self._missing})
        self._health = HealthServer(options.health_address, {**health.pages(), **ready.pages()})
        self._living: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start. Raises ``OSError`` if the address for probes is taken, ``StoreInUse`` and ``StoreDamaged``."""
        options, data_dir = self.options, self.options.serving.data_dir
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        journal = Journal(data_dir)
        try:
            self._store = Store(journal)
            await self._health.start()
        except BaseException:
            journal.close()
            raise
        self._volume = Volume(data_dir, self._store, LeaseName(options.lease, options.lease_namespace))
        self._election = LeaderElector(
            Client(self.voting),
            options.lease,
            options.lease_namespace,
            _identity(data_dir),
            self.clock,
            self.rng,
            terms=options.terms,
            annotations=self._volume.annotations,
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

    @property
    def port(self) -> int:
        """The port of the API while requests are served, else 0."""
        return self._server.port if self._server is not None and self.serving.is_set() else 0

    async def _live(self) -> None:
        await self._election.lead(self._lead)

    async def _lead(self) -> None:
        """Serve until cancelled, or until a part fails."""
        server = self._server = AggregatedServer(
            Client(self.transport),
            self._store,
            self.clock,
            self.rng,
            self.options.serving,
            leads=self._leads,
            audit=self.audit,
            volume=self._volume,
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(server.stop)
            await server.start()
            stack.callback(self.serving.clear)
            if not server.leaves:
                controllers = self._controllers(server)
                await controllers.start()
                try:
                    self.serving.set()
                    await _first_of(server.wait(), controllers.wait(), server.leaving())
                finally:
                    await controllers.stop()
            await server.freeze()
            self.serving.set()
            await server.wait()

    def _missing(self) -> str:
        """What keeps the process from serving; empty while it serves."""
        return "the leader lease" if self._server is None else self._server.waits_for

    def _controllers(self, server: AggregatedServer) -> ControllerProcess:
        """The controllers, with our kinds in this process and all others at kube-apiserver."""
        other: Transport = StampedTransport(FencedTransport(self.transport, self._leads), self._volume.stamp)
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
            binder=self.binder,
        )

    def _leads(self) -> bool:
        return self._election.held


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Wait until one of them ends, and raise its failure."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _identity(data_dir: Path) -> str:
    """The name of this volume in the lease. The host is part of it, so that a copy of the volume is another one."""
    path = data_dir / "identity"
    try:
        volume = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        volume = str(uuid.uuid4())
        write_private(path, f"{volume}\n".encode())
    return f"{socket.gethostname()}_{volume}"
