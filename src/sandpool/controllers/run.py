"""All controllers together: over one client, with shared caches, until they are stopped.

The order of things matters. Everything that exists is known before the first pass is made, because a pass that sees
half of the world would make the other half again. When stopping, passes that have begun are finished, so that nobody's
sandbox is taken and not written down, and only then are the watches ended and the last events written.

Watches and events may also be somebody else's: a process that waits for its turn to lead knows the world already while
it waits, and what it has to say when its turn is over is said when the next one works already.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sandpool.controllers.blueprints import Blueprints
from sandpool.controllers.caches import Caches, Reflection
from sandpool.controllers.claim import settings as claim
from sandpool.controllers.claim.controller import ClaimController
from sandpool.controllers.perform import Performer
from sandpool.controllers.sandbox.controller import SandboxController
from sandpool.controllers.sandbox.plan import Settings as SandboxSettings
from sandpool.controllers.template.controller import TemplateController
from sandpool.controllers.warmpool import settings as warmpool
from sandpool.controllers.warmpool.controller import WarmPoolController
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Controller
from sandpool.engine.metrics import Metrics
from sandpool.engine.metrics_controller import ControllerMetrics
from sandpool.engine.recorder import Recorder
from sandpool.engine.turnstile import CourteousTransport, Turnstile
from sandpool.kube.client import Client


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decides. Workers are how many objects of a kind are looked at at once."""

    namespace: str | None = None  # None: all
    instance: str = "sandpool"  # tells replicas apart in events; usually the host's name
    sandbox_workers: int = 100
    template_workers: int = 1
    warm_pool_workers: int = 4
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    warm_pool: warmpool.Settings = field(default_factory=warmpool.Settings)
    claim: claim.Settings = field(default_factory=claim.Settings)


class Controllers:
    """``start`` returns when they work, ``stop`` when nothing of them runs any more. ``wait`` is for whoever has
    nothing else to do: it raises if one of them has broken down.

    A ``reflection`` or a ``recorder`` that is passed in is run by whoever passes it, before and after."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        settings: Settings | None = None,
        metrics: Metrics | None = None,
        *,
        reflection: Reflection | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.settings = settings = settings or Settings()
        self.metrics = metrics = metrics or Metrics()
        self.clock = clock
        self._own_reflection, self._own_recorder = reflection is None, recorder is None
        self.reflection = reflection or Reflection(Caches(), client, clock, random, namespace=settings.namespace)
        self.caches = self.reflection.caches
        self.recorder = recorder or Recorder(client, clock, settings.instance)
        # Refilling pools must never be in the way of claims.
        turnstile = Turnstile()
        background = Client(CourteousTransport(client.transport, turnstile), field_manager=client.field_manager)
        performer = Performer(client, self.caches)
        blueprints = Blueprints(self.caches)
        self.sandboxes = SandboxController(
            client,
            self.caches,
            self.recorder,
            clock,
            random,
            settings=settings.sandbox,
            workers=settings.sandbox_workers,
            observer=ControllerMetrics("sandbox", settings.sandbox_workers, metrics),
            turnstile=turnstile,
        )
        self.templates = TemplateController(
            self.caches,
            performer,
            clock,
            random,
            workers=settings.template_workers,
            observer=ControllerMetrics("sandboxtemplate", settings.template_workers, metrics),
        )
        told = (self.recorder, metrics, clock, random)
        self.warm_pools = WarmPoolController(
            self.caches,
            blueprints,
            Performer(background, self.caches),
            *told,
            settings.warm_pool,
            workers=settings.warm_pool_workers,
        )
        self.claims = ClaimController(self.caches, blueprints, performer, *told, settings.claim)
        # In the order in which they stop: who serves people first, and what serves nobody last.
        self._controllers: tuple[Controller[Any], ...] = (
            self.claims.controller,
            self.warm_pools.controller,
            self.sandboxes.controller,
            self.templates.controller,
            self.claims.notes,
        )
        self._reflecting: asyncio.Task[None] | None = None
        self._working: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if self._own_recorder:
            self.recorder.start()
        if self._own_reflection:
            self._reflecting = asyncio.create_task(self.reflection.run(), name="reflection")
        await self.reflection.synced()
        self._working = [
            asyncio.create_task(controller.run(), name=controller.name) for controller in self._controllers
        ]

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
