"""One simulation: a world, what happens in it, and what must be true of it, all from one seed."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sandpool.api.kinds import SANDPOOL
from sandpool.kube.client import Client
from sandpool.node.simulated import Fate
from sandpool.testing.simulation.api import start_server
from sandpool.testing.simulation.controller_state import check_books, counted, observed, reconciles
from sandpool.testing.simulation.crash import Death
from sandpool.testing.simulation.event_loop import LoopClock, Process, SimulationLoop
from sandpool.testing.simulation.final_state import QuietWorld
from sandpool.testing.simulation.invariants import Laws, Violation
from sandpool.testing.simulation.network import SimulatedWire
from sandpool.testing.simulation.network_faults import Weather
from sandpool.testing.simulation.nodes import Nodes
from sandpool.testing.simulation.process import Incarnation
from sandpool.testing.simulation.profile import GENTLE, Theme, draw_theme
from sandpool.testing.simulation.trace import Trace
from sandpool.testing.simulation.users import NAMESPACE, People
from sandpool.testing.simulation.world import World

# Nothing may be written for so long before the world counts as quiet: longer than any pause of a controller.
SILENCE = 660.0
# If it is not quiet after this, it never will be.
_UNTIL_QUIET = 6_000.0
_LOOK = 60.0
_UNTIL_FILLED = 15.0
#: How often an object is looked at while it is quiet, at most: what is missing is looked for once a minute.
PASSES_WHEN_QUIET = 15

_FATES = (
    (Fate.READY,),
    (Fate.READY,) * 9 + (Fate.FAILED,),
    (Fate.READY,) * 6 + (Fate.HANGING, Fate.UNSCHEDULABLE, Fate.FAILED, Fate.SUCCEEDED),
    (Fate.READY, Fate.HANGING, Fate.UNSCHEDULABLE),
)


class SimulationFailure(AssertionError):
    """What went wrong, what had happened before, and how to see it again."""


@dataclass(slots=True)
class Scenario:
    """How a simulation differs from others of its seed. What is None is drawn."""

    theme: Theme | None = None
    deeds: int | None = None
    deaths: tuple[Death, ...] | None = None
    weather: Weather | None = None
    story: Callable[[World], Awaitable[None]] | None = None  # what happens instead of the deeds of people


@dataclass(slots=True)
class Outcome:
    seed: int
    digest: str
    steps: int  # callbacks that were run
    seconds: float  # that passed in the world
    writes: int  # of the controllers
    commits: int
    violation: Violation | None = None
    lines: list[str] = field(default_factory=list)  # of the trace, when it happened

    def check(self, replay: str = "tests/simulation/test_seeds.py -m 'not long'") -> None:
        if self.violation is None:
            return
        trace = "\n".join(self.lines)
        again = f"\n\nreplay: SANDPOOL_SEED={self.seed} .venv/bin/pytest {replay}" if replay else ""
        raise SimulationFailure(
            f"seed {self.seed} breaks the law {self.violation}\n\n{trace}{again}"
        ) from self.violation.__cause__


class Simulation:
    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        self.seed = seed
        self.scenario = scenario or Scenario()
        self.random = Random(seed)
        disorder = self.random.choice((0.0, 0.2, 1.0))
        self.loop = SimulationLoop(self.random, disorder=disorder)
        self.clock = LoopClock(self.loop)
        self.trace = Trace(self.loop.time)
        drawn = draw_theme(self.random)
        self.theme = self.scenario.theme or (drawn if self.scenario.story is None else GENTLE)
        self.weather = self.scenario.weather or Weather.drawn(self.random, self.theme)
        self.laws = Laws(self.loop.time, self._broken)
        self.incarnations: list[Incarnation] = []
        self._deaths = list(self._drawn_deaths() if self.scenario.deaths is None else self.scenario.deaths)
        self._violation: Violation | None = None
        self._lines: list[str] = []

    def run(self) -> Outcome:
        with _undisturbed():
            self.loop.set_exception_handler(self._unhandled)
            try:
                self.loop.run(self._live())
            except Violation as violation:
                self._broken(violation)
            except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be told
                self._broken(Violation("no surprises", f"{type(error).__name__}: {error}"))
                self._violation.__cause__ = error if self._violation is not None else None  # type: ignore[union-attr]
        return Outcome(
            seed=self.seed,
            digest=self.trace.digest(),
            steps=self.loop.steps,
            seconds=self.loop.time(),
            writes=sum(each.wire.writes for each in self.incarnations),
            commits=self.laws.commits,
            violation=self._violation,
            lines=self._lines,
        )

    async def _live(self) -> None:
        random = self.random
        self._failed: asyncio.Future[None] = self.loop.create_future()
        speed = random.choice((0.001, 0.01))
        self.server, self.store = await start_server(self.clock, random, lambda: random.random() * speed)
        gentle = Weather(random, lag=random.choice((0.0, 0.01)))
        self.nodes = Nodes(
            self._client("nodes", gentle),
            self.clock,
            random,
            pace=random.choice((0.05, 0.5, 3.0)),
            fates=random.choice(_FATES) if self.scenario.story is None else (Fate.READY,),
        )
        people = self._client("users", gentle)
        self.people = People(people, self.store, self.nodes, self.weather, self.theme, self.clock, random, self.trace)
        self.store.witness(self.laws.witness)
        self.store.witness(self.nodes.witness)
        story = asyncio.create_task(self._story(), name="story")
        await asyncio.wait((story, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if story.done():
            story.result()
        if self._failed.done():
            self._failed.result()

    async def _story(self) -> None:
        if self.scenario.story is None:
            await self._people()
        else:
            self._be_born()
            await self.scenario.story(World(self, self.people.client))
        self.trace.note("weather", "the storm is over")
        self.weather.is_over = True
        self._deaths.clear()
        self.incarnations[-1].death = None
        self.nodes.heal()
        await self._quiet()
        if not self.incarnations[-1].is_working:
            raise Violation("nothing breaks down", "the controllers have not begun to work")
        QuietWorld(self.store, NAMESPACE, self.clock.now()).check()
        check_books(self.incarnations[-1].controllers, self.store)
        self._check_metrics()

    async def _people(self) -> None:
        await self.people.begin()
        self._be_born()
        if self.random.choice(self.theme.is_filled):
            await asyncio.sleep(_UNTIL_FILLED)
        deeds = self.scenario.deeds
        await self.people.act(self.random.randint(2, 10) if deeds is None else deeds)

    async def _quiet(self) -> None:
        """Wait until nothing happens any more."""
        end = self.loop.time() + _UNTIL_QUIET
        silent, commits, passes = 0.0, -1, 0
        while silent < SILENCE:
            if self.loop.time() > end:
                raise Violation("it becomes quiet", f"after {_UNTIL_QUIET:g} s something is still written")
            await asyncio.sleep(_LOOK)
            now = reconciles(self.incarnations[-1].controllers)
            if self.laws.commits == commits:
                silent += _LOOK
            else:
                silent, commits, passes = 0.0, self.laws.commits, now
        objects = sum(self.store.count(type.group_resource) for type in SANDPOOL)
        if now - passes > PASSES_WHEN_QUIET * objects:
            raise Violation("it becomes quiet", f"{now - passes} passes over {objects} objects, and nothing changed")

    def _check_metrics(self) -> None:
        """Every claim that became ready was told once. If an answer was lost, or a process died, it may not have been
        told: nobody knows then, and twice would be worse."""
        lives = [incarnation.controllers for incarnation in self.incarnations]
        is_certain = len(lives) == 1 and not self.weather.losses
        told, given = sum(map(observed, lives)), sum(map(counted, lives))
        truth, gifts = len(self.laws.ready_claims), self.laws.adoptions + self.laws.cold_starts
        if told > truth or (is_certain and told != truth):
            raise Violation("metrics count every claim once", f"{told} were told and {truth} became ready")
        if given > gifts or (is_certain and given != gifts):
            raise Violation("metrics count every claim once", f"{given} sandboxes were counted and {gifts} given")

    # --- the lives of the controllers ---------------------------------------------------------------------------------

    def _drawn_deaths(self) -> Iterator[Death]:
        for _ in range(self.random.choice(self.theme.deaths)):
            yield Death.drawn(self.random, self.theme.dies_of)

    def _be_born(self) -> None:
        number = len(self.incarnations)
        wire = SimulatedWire(self.server.client(name="controllers").transport, self.weather, self.trace, "controllers")
        # Every second process writes metadata and status in one commit, the others as behind kube-apiserver.
        wire.stores_metadata_with_status = number % 2 == 1
        death = self._deaths.pop(0) if self._deaths else None
        self.trace.note("world", f"controllers {number} start, to die at {death}")
        incarnation = Incarnation(number, wire, self.clock, self.random, death, self._died, self._broken)
        self.incarnations.append(incarnation)
        life = incarnation.process.run(incarnation.live())
        life.add_done_callback(self._broke_down)

    def _died(self) -> None:
        incarnation = self.incarnations[-1]
        late = incarnation.wire.under_way.values()
        for request in late:
            self.laws.expect_zombie(request)
        self.trace.note("world", f"controllers {len(self.incarnations) - 1} die, {len(late)} writes under way")
        self.loop.call_later(self.random.choice(self.theme.reborn), self._be_born, context=Context())

    def _broke_down(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled() and (error := life.exception()) is not None:
            self._broken(Violation("nothing breaks down", f"the controllers ended with {error!r}"))

    # --- failures -----------------------------------------------------------------------------------------------------

    def _client(self, name: str, weather: Weather) -> Client:
        wire = SimulatedWire(self.server.client(name=name).transport, weather, self.trace, name)
        return Client(wire, field_manager=name)

    def _broken(self, violation: Violation) -> None:
        if self._violation is None:
            self._violation = violation
            self._lines = self.trace.lines()
            if not self._failed.done():
                self._failed.set_exception(violation)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody has caught, in a callback or a task that nobody waits for."""
        error = context.get("exception")
        if self._failed.done() or (Process.current() is not None and error is None):
            return
        self._broken(Violation("nothing breaks down", f"{context.get('message')}: {error!r}"))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the garbage collector, which would run clean-up code at moments no seed decides, and without logs."""
    was_enabled = gc.isenabled()
    gc.disable()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        gc.unfreeze()
        if was_enabled:
            gc.enable()
