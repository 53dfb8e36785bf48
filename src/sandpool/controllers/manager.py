"""All controllers together: over one client, with shared caches, until they are stopped.

The order of things matters. Everything that exists is known before the first pass is made, because a pass that sees
half of the world would make the other half again. When stopping, passes that have begun are finished, so that nobody's
sandbox is taken and not written down, and only then are the watches ended and the last events written.

Watches and events may also be somebody else's: a process that waits for its turn to lead knows the world already while
it waits, and what it has to say when its turn is over is said when the next one works already.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from sandpool.api.events import Happening
from sandpool.controllers.claim.controller import ClaimController
from sandpool.controllers.informers import Caches, InformerSet
from sandpool.controllers.metrics import SandboxCounts
from sandpool.controllers.middleware import with_tracing
from sandpool.controllers.options import ControllerOptions
from sandpool.controllers.revision import TemplateRevisions
from sandpool.controllers.sandbox.controller import SandboxController
from sandpool.controllers.template.controller import TemplateController
from sandpool.controllers.warmpool.controller import WarmPoolController
from sandpool.controllers.writer import ApiWriter
from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Controller
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.tracing import Tracing
from sandpool.engine.transports import BackgroundTransport
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.client import Client


class DiscardingRecorder(EventRecorder):
    """For those of whom nothing is to be told."""

    def event(self, regarding: ObjectReference, happening: Happening) -> None:
        pass


class ControllerManager:
    """``start`` returns when they work, ``stop`` when nothing of them runs any more. ``wait`` is for whoever has
    nothing else to do: it raises if one of them has broken down, as does ``start`` if they cannot begin.

    A ``informers`` or a ``recorder`` that is passed in is run by whoever passes it, before and after."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        options: ControllerOptions | None = None,
        metrics: MetricsRegistry | None = None,
        *,
        informers: InformerSet | None = None,
        recorder: EventRecorder | None = None,
        gate: BackgroundGate | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.options = options = options or ControllerOptions()
        self.metrics = metrics = metrics or MetricsRegistry()
        self.clock = clock
        self._own_reflection, self._own_recorder = informers is None, recorder is None
        self.informers = informers or InformerSet(
            Caches(),
            client,
            clock,
            random,
            namespace=options.namespace,
            labelled=options.cache_label_selectors,
        )
        self.caches = self.informers.caches
        # Nothing that nobody waits for must be in the way of claims: refilling pools, notes, events.
        self.gate = gate = gate if gate is not None else BackgroundGate(clock)
        background = Client(BackgroundTransport(client.transport, gate), field_manager=client.field_manager)
        writer, background_writer = ApiWriter(client, self.caches), ApiWriter(background, self.caches)
        self.recorder = recorder or EventRecorder(client, clock, options.instance, gate=gate)
        revisions = TemplateRevisions(self.caches)
        self.sandboxes = SandboxController(
            client,
            self.caches,
            self.recorder,
            clock,
            random,
            options=options.sandbox,
            workers=options.sandbox_workers,
            observer=ControllerMetrics("sandbox", options.sandbox_workers, metrics),
            queue_metrics=QueueMetrics("sandbox", metrics, clock),
            gate=gate,
            tracing=tracing,
        )
        self.templates = TemplateController(
            self.caches,
            writer,
            clock,
            random,
            workers=options.template_workers,
            observer=ControllerMetrics("sandboxtemplate", options.template_workers, metrics),
            queue=WorkQueue(observer=QueueMetrics("sandboxtemplate", metrics, clock)),
        )
        measured = (metrics, clock, random)
        self.warm_pools = WarmPoolController(
            self.caches,
            revisions,
            background_writer,
            self.recorder,
            *measured,
            options.warm_pool,
            workers=options.warm_pool_workers,
            gate=gate,
            direct_writer=writer,
        )
        noting = self.recorder if options.claim_events else DiscardingRecorder(client, clock, options.instance)
        self.claims = ClaimController(
            self.caches, revisions, writer, background_writer, noting, *measured, options.claim, tracing=tracing
        )
        gate.yield_to(self.claims.controller.queue)
        self.population = SandboxCounts(self.caches.sandboxes, metrics)
        # In the order in which they stop: who serves people first, and what serves nobody last.
        self._controllers: tuple[Controller[Any], ...] = (
            self.claims.controller,
            self.warm_pools.controller,
            self.sandboxes.controller,
            self.templates.controller,
            self.claims.annotations,
        )
        if tracing is not None:
            self._trace(tracing)
        self._reflecting: asyncio.Task[None] | None = None
        self._working: list[asyncio.Task[None]] = []

    def _trace(self, tracing: Tracing) -> None:
        """Pools are not traced: nobody asks for what they do."""
        for span, controller, cache in (
            ("ReconcileSandbox", self.sandboxes.controller, self.caches.sandboxes),
            ("ReconcileSandboxClaim", self.claims.controller, self.caches.claims),
            ("ReconcileSandboxTemplate", self.templates.controller, self.caches.templates),
        ):
            controller.reconcile = with_tracing(controller.reconcile, span, cache, tracing)

    async def start(self) -> None:
        if self._own_recorder:
            self.recorder.start()
        if self._own_reflection:
            self._reflecting = asyncio.create_task(self.informers.run(), name="reflection")
        await self._synced()
        self._working = [
            asyncio.create_task(controller.run(), name=controller.name) for controller in self._controllers
        ]

    async def _synced(self) -> None:
        """Wait until everything is known. Raises what has ended our own watches, if anything does before that."""
        if self._reflecting is None:
            await self.informers.synced()
            return
        synced = asyncio.create_task(self.informers.synced(), name="first look")
        try:
            await asyncio.wait((synced, self._reflecting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            synced.cancel()
        if not synced.done():
            if not self._reflecting.cancelled():
                self._reflecting.result()
            raise RuntimeError("stopped before everything was known")

    async def wait(self) -> None:
        """Until stopped. Raises what no controller should: a failure that is not about one object."""
        assert self._working, "start first"
        tasks = [*self._working, self._reflecting] if self._reflecting is not None else self._working
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()

    async def stop(self, grace: float = 10.0) -> None:
        """Passes that have begun have ``grace`` seconds, all of them together, to finish."""
        end = self.clock.monotonic() + grace
        for controller in self._controllers:
            await controller.stop(max(0.0, end - self.clock.monotonic()))
        await asyncio.gather(*self._working, return_exceptions=True)
        if self._own_recorder:
            await self.recorder.stop()
        if self._reflecting is not None:
            self._reflecting.cancel()
            await asyncio.gather(self._reflecting, return_exceptions=True)
