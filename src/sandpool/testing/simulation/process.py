"""One life of the controllers' process: from its start to its stop, or to the write at which it is killed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sandpool.controllers.manager import ControllerManager
from sandpool.controllers.options import ClaimOptions, ControllerOptions
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.transport import Request
from sandpool.testing.simulation.crash import Death, Moment
from sandpool.testing.simulation.event_loop import Process
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.network import SimulatedWire
from sandpool.testing.simulation.request_rules import Manners

#: Few enough that they are in each other's way.
SMALL = ControllerOptions(
    sandbox_workers=6, warm_pool_workers=2, template_workers=1, claim=ClaimOptions(workers=6, annotation_workers=2)
)


class Incarnation:
    """``died`` is called when the process has been killed, ``broken`` when it does what no process may."""

    def __init__(
        self,
        number: int,
        wire: SimulatedWire,
        clock: Clock,
        random: Random,
        death: Death | None,
        died: Callable[[], None],
        broken: Callable[[Violation], None],
    ) -> None:
        self.wire = wire
        self.death = death
        self.died = died
        self.broken = broken
        self.process = Process(f"controllers {number}")
        self.controllers = ControllerManager(Client(wire), clock, random, SMALL)
        self.is_working = False
        self._manners = Manners(self.controllers, clock.monotonic)
        self._counted = 0  # writes of the kind it dies of
        self._fatal: Request | None = None
        wire.before = self._before
        wire.sent = self._sent
        wire.after = self._after

    async def live(self) -> None:
        """Until stopped; raises if one of the controllers breaks down."""
        await self.controllers.start()
        self.is_working = True
        await self.controllers.wait()

    def kill(self) -> None:
        if self.process.is_alive:
            self.process.kill()
            self.wire.cut()
            self.died()

    def _before(self, writer: str, request: Request) -> None:
        try:
            self._manners.check(writer, request)
        except Violation as violation:
            self.broken(violation)
        if self.death is None or not self.death.of.includes(request):
            return
        self._counted += 1
        if self._counted != self.death.write:
            return
        self._fatal = request
        if self.death.moment is Moment.BEFORE:
            self.kill()

    def _after(self, writer: str, request: Request) -> None:
        if request is self._fatal and self.death is not None and self.death.moment is Moment.AFTER:
            self.kill()

    def _sent(self, request: Request) -> None:
        if request is self._fatal and self.death is not None and self.death.moment is Moment.SENT:
            self.kill()
