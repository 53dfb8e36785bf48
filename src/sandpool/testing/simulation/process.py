"""One process of the controllers, from its start until it stops or is killed at a write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from sandpool.controllers.manager import ControllerManager
from sandpool.controllers.options import ClaimOptions, ControllerOptions
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.late_binding import Binder
from sandpool.kube.transport import Request
from sandpool.testing.simulation.crash import Crash, CrashPoint
from sandpool.testing.simulation.event_loop import Process
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.network import ControllerTransport
from sandpool.testing.simulation.request_rules import RequestRules

#: Few workers, so that they contend.
SMALL = ControllerOptions(
    sandbox_workers=6, warm_pool_workers=2, template_workers=1, claim=ClaimOptions(workers=6, annotation_workers=2)
)


class ControllerProcess:
    """Awaits ``serve`` first. ``on_crash`` is called after a kill, ``on_violation`` when a request breaks a rule."""

    def __init__(
        self,
        process: Process,
        transport: ControllerTransport,
        serve: Callable[[], Awaitable[None]],
        clock: Clock,
        rng: Random,
        crash: Crash | None,
        on_crash: Callable[[], None],
        on_violation: Callable[[Violation], None],
        binder: Binder,
    ) -> None:
        self.transport = transport
        self.crash = crash
        self.on_crash = on_crash
        self.on_violation = on_violation
        self.process = process
        self.serve = serve
        self.controllers = ControllerManager(Client(transport), clock, rng, SMALL, binder=binder)
        self.is_working = False
        self._rules = RequestRules(self.controllers, clock.monotonic)
        self._counted = 0  # writes of the kind that counts towards the crash
        self._crash_request: Request | None = None
        transport.watch_writes(self._before, self._sent, self._after)

    async def run(self) -> None:
        """Run until stopped; raises if a controller fails."""
        await self.serve()
        await self.controllers.start()
        self.is_working = True
        await self.controllers.wait()

    def kill(self) -> None:
        if self.process.is_alive:
            self.process.kill()
            self.transport.disconnect()
            self.on_crash()

    def _before(self, writer: str, request: Request) -> None:
        try:
            self._rules.check(writer, request)
        except Violation as violation:
            self.on_violation(violation)
        if self.crash is None or not self.crash.kind.includes(request):
            return
        self._counted += 1
        if self._counted != self.crash.write:
            return
        self._crash_request = request
        if self.crash.point is CrashPoint.BEFORE:
            self.kill()

    def _after(self, writer: str, request: Request) -> None:
        if request is self._crash_request and self.crash is not None and self.crash.point is CrashPoint.AFTER:
            self.kill()

    def _sent(self, request: Request) -> None:
        if request is self._crash_request and self.crash is not None and self.crash.point is CrashPoint.SENT:
            self.kill()
