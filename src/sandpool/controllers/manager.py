"""Starts and stops all controllers over one client, with shared caches.

The order matters. No reconcile starts before all caches are synced, because with incomplete caches it would create
objects that exist already. When stopping, running reconciles finish first, so that an adopted sandbox is recorded in
its claim; only then do the watches end, and the last events are written.

The caller may pass its own informers and event recorder. A process that waits for the leader lease keeps its caches
warm that way, and can still write its last events after it has released the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from sandpool.api.events import EventSpec
from sandpool.api.metrics import SANDBOXES
from sandpool.api.resource import Key
from sandpool.controllers.claim.controller import ClaimController
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import Caches, InformerSet
from sandpool.controllers.metrics import STATE_LOSSES, SandboxCounts, StateLossCounts
from sandpool.controllers.middleware import trace_reconciles
from sandpool.controllers.options import ControllerOptions
from sandpool.controllers.quota import NamespaceLimits
from sandpool.controllers.sandbox.controller import SandboxController
from sandpool.controllers.template.controller import TemplateController
from sandpool.controllers.warmpool.controller import WarmPoolController
from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import Clock, within
from sandpool.engine.controller import Controller, Middleware
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.tracing import Tracing
from sandpool.kube.client import Client
from sandpool.kube.late_binding import Binder

_log = logging.getLogger(__name__)


class DiscardingRecorder(EventRecorder):
    """Discards all events."""

    def event(self, regarding: ObjectReference, spec: EventSpec) -> None:
        pass


class ControllerManager:
    """Runs the controllers. ``start`` returns when they reconcile, ``stop`` when all their tasks have ended.
    ``wait`` raises if a controller fails, and ``start`` raises if they cannot begin.

    The caller runs ``informers`` and ``recorder`` if it passes them, before ``start`` and after ``stop``.
    ``middleware`` wraps the reconciles of all controllers, the first of it outermost. ``binder`` hands variables of
    claims to warm sandboxes.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        rng: Random,
        options: ControllerOptions | None = None,
        metrics: MetricsRegistry | None = None,
        *,
        informers: InformerSet | None = None,
        recorder: EventRecorder | None = None,
        gate: BackgroundGate | None = None,
        tracing: Tracing | None = None,
        middleware: Sequence[Middleware[Key]] = (),
        binder: Binder | None = None,
    ) -> None:
        self.options = options = options or ControllerOptions()
        self.metrics = metrics = metrics or MetricsRegistry()
        self.clock = clock
        self._own_informers, self._own_recorder = informers is None, recorder is None
        self.informers = informers or InformerSet(
            Caches(),
            client,
            clock,
            rng,
            namespace=options.namespace,
            labelled=options.cache_label_selectors,
        )
        self.caches = self.informers.caches
        # Background work yields to claims: refills of pools, annotations, events.
        self.gate = gate = gate if gate is not None else BackgroundGate(clock)
        self.recorder = recorder or EventRecorder(client, clock, options.instance, gate=gate)
        if tracing is not None:
            middleware = (*middleware, trace_reconciles(tracing, self.caches))
        shared = Dependencies.of(
            client,
            self.caches,
            self.recorder,
            clock,
            rng,
            gate=gate,
            metrics=metrics,
            tracing=tracing,
            limits=NamespaceLimits(
                self.caches,
                claims=options.max_claims_per_namespace,
                warm_sandboxes=options.max_warm_sandboxes_per_namespace,
            ),
            middleware=middleware,
            binder=binder,
        )
        self.sandboxes = SandboxController(shared, options.sandbox, workers=options.sandbox_workers)
        self.templates = TemplateController(shared, workers=options.template_workers)
        self.warm_pools = WarmPoolController(shared, options.warm_pool, workers=options.warm_pool_workers)
        claim_recorder = self.recorder if options.claim_events else DiscardingRecorder(client, clock, options.instance)
        self.claims = ClaimController(replace(shared, recorder=claim_recorder), options.claim)
        gate.yield_to(self.claims.controller.queue)
        counts = SandboxCounts()
        counts.subscribe(self.caches.sandboxes)
        metrics.collect(SANDBOXES, counts.samples)
        losses = StateLossCounts()
        losses.subscribe(self.caches.sandboxes)
        metrics.collect(STATE_LOSSES, losses.samples)
        # In the order in which they stop: first those that clients wait for.
        self._controllers: tuple[Controller[Any], ...] = (
            self.claims.controller,
            self.warm_pools.controller,
            self.sandboxes.controller,
            self.templates.controller,
            self.claims.annotations,
        )
        self._informing: asyncio.Task[None] | None = None
        self._working: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if self._own_recorder:
            self.recorder.start()
        if self._own_informers:
            self._informing = asyncio.create_task(self.informers.run(), name="informers")
        await self._synced()
        self._working = [
            asyncio.create_task(controller.run(), name=controller.name) for controller in self._controllers
        ]

    async def _synced(self) -> None:
        """Wait until the caches are synced. Raises the failure of our own watches if they end before that."""
        if self._informing is None:
            await self.informers.synced()
            return
        synced = asyncio.create_task(self.informers.synced(), name="sync of the caches")
        try:
            await asyncio.wait((synced, self._informing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            synced.cancel()
        if not synced.done():
            if not self._informing.cancelled():
                self._informing.result()
            raise RuntimeError("stopped before everything was known")

    async def wait(self) -> None:
        """Wait until stopped. Raises failures that are not about a single object."""
        assert self._working, "start first"
        tasks = [*self._working, self._informing] if self._informing is not None else self._working
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()

    async def _flush_annotations(self, seconds: float) -> None:
        try:
            await within(self.clock, max(0.0, seconds), self.claims.flush_annotations())
        except TimeoutError:
            _log.warning("stopping before all annotations of claims were written; the next leader fills them in")

    async def stop(self, grace: float = 10.0) -> None:
        """Stop. All running reconciles together have ``grace`` seconds to finish, and pending annotations are written.

        Without ``grace`` another process may lead, which does the rest.
        """
        end = self.clock.monotonic() + grace
        for controller in self._controllers:
            if controller is self.claims.annotations and grace > 0:
                await self._flush_annotations(end - self.clock.monotonic())
            await controller.stop(max(0.0, end - self.clock.monotonic()))
        await asyncio.gather(*self._working, return_exceptions=True)
        if self._own_recorder:
            await self.recorder.stop()
        if self._informing is not None:
            self._informing.cancel()
            await asyncio.gather(self._informing, return_exceptions=True)
