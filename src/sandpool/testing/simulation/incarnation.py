"""One life of the controllers' process: from its start to its stop, or to the write at which it is killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.controllers.claim.settings import Settings as ClaimSettings
from sandpool.controllers.run import Controllers, Settings
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.transport import Request
from sandpool.testing.simulation.laws import Violation
from sandpool.testing.simulation.loop import Process
from sandpool.testing.simulation.manners import Manners
from sandpool.testing.simulation.wire import SimulatedWire

#: Few enough that they are in each other's way.
SMALL = Settings(
    sandbox_workers=6, warm_pool_workers=2, template_workers=1, claim=ClaimSettings(workers=6, note_workers=2)
)


class Moment(Enum):
    """When a process dies, of the write it dies at."""

    BEFORE = "before it is sent"
    SENT = "while it is under way"
    AFTER = "when it is carried out, and before the answer is heard"


class Kind(Enum):
    """Of which writes a process dies."""

    ANY = "any"
    GIFT = "one that gives a sandbox to a claim"
    CREATION = "one that makes a sandbox"

    def includes(self, request: Request) -> bool:
        if self is Kind.CREATION:
            return request.method == "POST" and request.path.endswith(f"/{SANDBOX.plural}")
        if self is Kind.GIFT:
            owners = (request.body or {}).get("metadata", {}).get("ownerReferences") or [{}]
            return bool(owners[0].get("kind") == SANDBOX_CLAIM.kind)
        return True


@dataclass(frozen=True, slots=True)
class Death:
    write: int  # the number of the write, the first being 1
    moment: Moment
    of: Kind = Kind.ANY  # only these writes count

    @classmethod
    def drawn(cls, random: Random) -> Death:
        kind = random.choice((Kind.ANY, Kind.CREATION, Kind.GIFT, Kind.GIFT))
        moment = random.choice((Moment.BEFORE, Moment.SENT, Moment.SENT, Moment.AFTER))
        return cls(random.randint(1, 40 if kind is Kind.ANY else 3), moment, kind)


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
        self.controllers = Controllers(Client(wire), clock, random, SMALL)
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
