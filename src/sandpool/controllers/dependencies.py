"""Dependencies that the controllers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from sandpool.api.resource import Key
from sandpool.controllers.informers import Caches
from sandpool.controllers.quota import NamespaceLimits
from sandpool.controllers.revision import TemplateRevisions
from sandpool.controllers.writer import ApiWriter
from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Middleware
from sandpool.engine.events import EventRecorder
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.tracing import NoTracing, Tracing
from sandpool.engine.transports import BackgroundTransport
from sandpool.kube.client import Client
from sandpool.kube.late_binding import Binder


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The parts that all controllers work with.

    ``background`` is for writes that no client waits for: each of its requests waits for ``gate``. ``middleware`` wraps
    the reconcile of every controller, the first of it outermost.
    """

    caches: Caches
    revisions: TemplateRevisions
    writer: ApiWriter
    background: ApiWriter
    gate: BackgroundGate
    recorder: EventRecorder
    metrics: MetricsRegistry
    clock: Clock
    rng: Random
    tracing: Tracing
    limits: NamespaceLimits
    middleware: Sequence[Middleware[Key]] = ()
    binder: Binder | None = None  # None: claims with variables never get a warm sandbox

    @classmethod
    def of(
        cls,
        client: Client,
        caches: Caches,
        recorder: EventRecorder,
        clock: Clock,
        rng: Random,
        *,
        gate: BackgroundGate | None = None,
        metrics: MetricsRegistry | None = None,
        tracing: Tracing | None = None,
        limits: NamespaceLimits | None = None,
        middleware: Sequence[Middleware[Key]] = (),
        binder: Binder | None = None,
    ) -> Dependencies:
        """Derive the writers from ``client``. Without ``tracing`` nothing is traced."""
        if gate is None:
            gate = BackgroundGate(clock)
        background = Client(BackgroundTransport(client.transport, gate), field_manager=client.field_manager)
        return cls(
            caches,
            TemplateRevisions(caches),
            ApiWriter(client, caches),
            ApiWriter(background, caches),
            gate,
            recorder,
            metrics or MetricsRegistry(),
            clock,
            rng,
            tracing or NoTracing(),
            limits or NamespaceLimits(caches),
            middleware,
            binder,
        )
