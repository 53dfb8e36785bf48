"""Runs the controllers as a process: preflight check, leader election, health endpoints, shutdown order.

A process that waits for the lease lists and watches from the start, so a successor works as soon as it leads. It takes
part in the election only once its caches are synced, because a leader without them is worse than none.

Before that it checks that the API serves the kinds and grants the permissions. If not, it logs what is missing and
waits: on Kubernetes such objects are applied in any order, and a process that exits would only be restarted.

Shutdown has an order too. Running reconciles finish; then the lease is released, so that a successor does not wait for
the rest; then the last events are written; and the health endpoints close last. A lost lease ends everything at once,
since the successor does the remaining work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Final

from sandpool.api.resource import Key
from sandpool.controllers.informers import Caches, InformerSet
from sandpool.controllers.manager import ControllerManager
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.controllers.preflight import find_missing
from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Middleware
from sandpool.engine.events import EventRecorder
from sandpool.engine.health import Checks, HealthServer, metrics_page
from sandpool.engine.leaderelection import LeaderElector
from sandpool.engine.metrics.controller import (
    export_build_info,
    export_event_counts,
    export_leadership,
    export_watch_age,
)
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import Backoff
from sandpool.engine.tracing import Tracing
from sandpool.engine.transports import FencedTransport, ThrottledTransport
from sandpool.kube.client import Client
from sandpool.kube.late_binding import Binder
from sandpool.kube.transport import Transport

_log = logging.getLogger(__name__)

_NOT_ASKED: Final = "the API has not answered yet"
_LAST_WORDS: Final = 5.0  # seconds for unwritten events, when stopping


class ControllerProcess:
    """The process. ``start`` returns at once. ``working`` is set while the controllers work. ``wait`` raises their
    failure. ``stop`` returns when no task runs any more. The caller owns the transport."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        rng: Random,
        options: ControllerOptions | None = None,
        process_options: ProcessOptions | None = None,
        *,
        metrics: MetricsRegistry | None = None,
        election: LeaderElector | None = None,
        tracing: Tracing | None = None,
        middleware: Sequence[Middleware[Key]] = (),
        binder: Binder | None = None,
    ) -> None:
        """``middleware`` wraps the reconciles of all controllers, the first of it outermost. ``binder`` hands variables
        of claims to warm sandboxes."""
        self.clock = clock
        self.rng = rng
        self.options = options = options or ControllerOptions()
        self.process_options = process_options = process_options or ProcessOptions()
        self.metrics = metrics = metrics or MetricsRegistry()
        self.election = election
        self.tracing = tracing
        self.middleware = middleware
        self.binder = binder
        self.working = asyncio.Event()
        self._stopping = False
        self._missing = _NOT_ASKED  # what the preflight check misses; empty once it misses nothing
        self._reading = Client(self._limited(transport))
        self._writing = Client(self._limited(FencedTransport(transport, self._leads)))
        self.informers = InformerSet(
            Caches(),
            self._reading,
            clock,
            rng,
            namespace=options.namespace,
            labelled=options.cache_label_selectors,
        )
        # Events about work done while leading may be written after the lease was released.
        telling = FencedTransport(transport, lambda: self._leads() or self._stopping)
        self.gate = BackgroundGate(clock)
        self.recorder = EventRecorder(Client(self._limited(telling)), clock, options.instance, gate=self.gate)
        health = Checks("healthz", {"ping": lambda: ""})
        ready = Checks("readyz", {"api": lambda: self._missing, "caches": self._unseen})
        self.metrics_endpoint = HealthServer(process_options.metrics_address, metrics_page(metrics))
        self.health_endpoint = HealthServer(process_options.health_address, {**health.pages(), **ready.pages()})
        self._show()
        self._living: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start. Raises ``OSError`` if one of the addresses is taken."""
        await self.metrics_endpoint.start()
        try:
            await self.health_endpoint.start()
        except BaseException:
            await self.metrics_endpoint.stop()
            raise
        self._living = asyncio.create_task(self._live(), name="the controllers' process")

    async def wait(self) -> None:
        """Wait until the process ends by itself, which it does only by failing: ``LeaseLost``, or a bug."""
        assert self._living is not None, "start first"
        await asyncio.wait([self._living])
        self._living.result()

    async def stop(self) -> None:
        self._stopping = True
        if self._living is not None:
            self._living.cancel()
            await asyncio.wait([self._living])
        await self.health_endpoint.stop()
        await self.metrics_endpoint.stop()

    async def _live(self) -> None:
        await self._admitted()
        self.recorder.start()
        informing = asyncio.create_task(self.informers.run(), name="informers")
        leading = asyncio.create_task(self._lead(), name="controllers")
        try:
            done, _ = await asyncio.wait((informing, leading), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(leading)
            await self.recorder.stop(_LAST_WORDS if self._stopping else 0.0)
            await _end(informing)

    async def _lead(self) -> None:
        await self.informers.synced()
        if self.election is None:
            await self._work()
        else:
            await self.election.lead(self._work)

    async def _admitted(self) -> None:
        """Wait until the API has the kinds and permissions that the controllers need."""
        pauses: Backoff[None] = Backoff(self.rng, first=1.0, longest=15.0)
        lease = {"lease_namespace": self.election.namespace, "lease": self.election.name} if self.election else {}
        while missing := await find_missing(self._reading, self.options.namespace, **lease):
            if missing != self._missing:
                _log.warning("waiting: %s", missing)
                self._missing = missing
            await self.clock.sleep(pauses.next_delay(None))
        self._missing = ""

    async def _work(self) -> None:
        controllers = ControllerManager(
            self._writing,
            self.clock,
            self.rng,
            self.options,
            self.metrics,
            informers=self.informers,
            recorder=self.recorder,
            gate=self.gate,
            tracing=self.tracing,
            middleware=self.middleware,
            binder=self.binder,
        )
        await controllers.start()
        self.working.set()
        try:
            await controllers.wait()
        finally:
            self.working.clear()
            await controllers.stop(self.process_options.grace if self._leads() else 0.0)

    def _leads(self) -> bool:
        return self.election is None or self.election.held

    def _limited(self, transport: Transport) -> Transport:
        rate = self.process_options.rate
        return transport if rate is None else ThrottledTransport(transport, rate)

    def _unseen(self) -> str:
        missing = [str(each.type) for each in self.informers.reflectors if not each.synced.is_set()]
        return f"not seen yet: {', '.join(missing)}" if missing else ""

    def _show(self) -> None:
        export_build_info(self.metrics)
        export_event_counts(self.metrics, self.recorder)
        if self.election is not None:
            export_leadership(self.metrics, self.election)
        for reflector in self.informers.reflectors:
            export_watch_age(self.metrics, reflector.type.plural, reflector.age)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it. Its failure has been raised to the caller already, or is logged here."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s did not end cleanly", task.get_name(), exc_info=task.exception())
