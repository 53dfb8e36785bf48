"""One simulation: a world, its users and faults, and the checks of its invariants, all derived from one seed."""

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
from sandpool.kube.transport import Transport
from sandpool.node.simulated import Fate
from sandpool.server.api_server import ApiServer
from sandpool.testing.simulated_binder import SimulatedBinder
from sandpool.testing.simulation.aggregated import AggregatedApi
from sandpool.testing.simulation.api import AttributedStore, ObjectStore, start_server
from sandpool.testing.simulation.controller_state import (
    check_controller_state,
    ready_claims_observed,
    reconciles,
    sandboxes_counted,
)
from sandpool.testing.simulation.crash import Crash
from sandpool.testing.simulation.event_loop import LoopClock, Process, SimulationLoop
from sandpool.testing.simulation.final_state import FinalState
from sandpool.testing.simulation.invariants import Invariants, Violation
from sandpool.testing.simulation.network import ControllerTransport, SimulatedTransport
from sandpool.testing.simulation.network_faults import NetworkFaults
from sandpool.testing.simulation.nodes import Nodes
from sandpool.testing.simulation.process import ControllerProcess
from sandpool.testing.simulation.profile import RELIABLE_NETWORK, Profile
from sandpool.testing.simulation.trace import Trace
from sandpool.testing.simulation.world import NAMESPACE, World

# Seconds without a write after which the world is quiescent: longer than any back-off of a controller.
QUIET_SECONDS = 660.0
# Seconds within which the world must become quiescent.
_UNTIL_QUIET = 6_000.0
_INTERVAL = 60.0
#: Limit of reconciles per object during the quiet period: a missing dependency is checked once a minute.
RECONCILES_WHEN_QUIET = 15


class SimulationFailure(AssertionError):
    """A violated invariant, with the trace before it and the command that replays it."""


@dataclass(slots=True)
class Scenario:
    """Fixed parts of a simulation. Fields that are None are drawn from the seed."""

    profile: Profile | None = None
    crashes: tuple[Crash, ...] | None = None
    faults: NetworkFaults | None = None
    story: Callable[[World], Awaitable[None]] | None = None
    aggregated: bool = False  # our kinds are in the controllers' process, and all others behind a kube-apiserver


@dataclass(slots=True)
class Outcome:
    seed: int
    digest: str
    steps: int  # callbacks that ran
    seconds: float  # of virtual time
    writes: int  # of the controllers
    commits: int
    violation: Violation | None = None
    lines: list[str] = field(default_factory=list)  # of the trace, at the violation

    def check(self, replay: str = "tests/simulation/test_seeds.py -m 'not long'") -> None:
        if self.violation is None:
            return
        trace = "\n".join(self.lines)
        again = f"\n\nreplay: SANDPOOL_SEED={self.seed} .venv/bin/pytest {replay}" if replay else ""
        raise SimulationFailure(
            f"seed {self.seed} violates the invariant {self.violation}\n\n{trace}{again}"
        ) from self.violation.__cause__


class SingleApi:
    """One API for all kinds, which outlives the processes of the controllers."""

    def __init__(self, server: ApiServer, store: AttributedStore) -> None:
        self.server = server
        self.store = store
        self._processes = 0

    def transport(self, name: str) -> Transport:
        return self.server.client(name=name).transport

    def controllers(self, process: Process, faults: NetworkFaults, trace: Trace) -> ControllerTransport:
        transport = SimulatedTransport(self.transport("controllers"), faults, trace, "controllers")
        # Every second process writes metadata and status in one commit, the others as behind kube-apiserver.
        transport.stores_metadata_with_status = self._processes % 2 == 1
        self._processes += 1
        return transport

    async def serve(self) -> None:
        """The API serves already."""

    def crash(self) -> None:
        """The end of a process of the controllers does not affect the API."""

    def observe_violations(self, time: Callable[[], float], on_violation: Callable[[Violation], None]) -> None:
        """One API adds no invariants."""

    def check(self) -> None:
        """One API adds no invariants of the final state."""


class Simulation:
    """Runs the story of a scenario. A subclass can run other users instead: it overrides the methods that draw."""

    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        self.seed = seed
        self.scenario = scenario or Scenario()
        self.rng = Random(seed)
        disorder = self.rng.choice((0.0, 0.2, 1.0))
        self.loop = SimulationLoop(self.rng, disorder=disorder)
        self.clock = LoopClock(self.loop)
        self.trace = Trace(self.loop.time)
        self.profile = self.draw_profile()
        self.faults = self.scenario.faults or NetworkFaults.draw(self.rng, self.profile)
        self.invariants = Invariants(self.loop.time, self._fail)
        self.binder = self.make_binder()
        self.processes: list[ControllerProcess] = []
        self._crashes = list(self._drawn_crashes() if self.scenario.crashes is None else self.scenario.crashes)
        self._violation: Violation | None = None
        self._lines: list[str] = []

    def draw_profile(self) -> Profile:
        return self.scenario.profile or RELIABLE_NETWORK

    def draw_fates(self) -> tuple[Fate, ...]:
        """The fates of pods, equally likely."""
        return (Fate.READY,)

    def make_binder(self) -> SimulatedBinder:
        """The receiver of the variables of claims in the pods."""
        return SimulatedBinder(self.clock)

    def prepare(self, client: Client) -> None:
        """Set up the users of ``client``, before the first task starts."""
        self.client = client

    async def play(self) -> None:
        """Start the controllers and use the API until the users are done."""
        self.start_controllers()
        if self.scenario.story is not None:
            await self.scenario.story(World(self, self.client))

    def run(self) -> Outcome:
        with _undisturbed():
            self.loop.set_exception_handler(self._unhandled)
            try:
                self.loop.run(self._run())
            except Violation as violation:
                self._fail(violation)
            except Exception as error:  # noqa: BLE001 - every failure is reported with its seed
                self._fail(Violation("no unexpected exception", f"{type(error).__name__}: {error}"))
                self._violation.__cause__ = error if self._violation is not None else None  # type: ignore[union-attr]
        return Outcome(
            seed=self.seed,
            digest=self.trace.digest(),
            steps=self.loop.steps,
            seconds=self.loop.time(),
            writes=sum(each.transport.writes for each in self.processes),
            commits=self.invariants.commits,
            violation=self._violation,
            lines=self._lines,
        )

    async def _run(self) -> None:
        rng = self.rng
        self._failed: asyncio.Future[None] = self.loop.create_future()
        speed = rng.choice((0.001, 0.01))
        self.api = await self._start_api(lambda: rng.random() * speed)
        self.store: ObjectStore = self.api.store
        gentle = NetworkFaults(rng, lag=rng.choice((0.0, 0.01)))
        self.nodes = Nodes(
            self._client("nodes", gentle),
            self.clock,
            rng,
            pace=rng.choice((0.05, 0.5, 3.0)),
            fates=self.draw_fates(),
        )
        self.prepare(self._client("users", gentle))
        self.store.add_write_observer(self.invariants.observe_write)
        self.store.add_write_observer(self.nodes.observe_write)
        self.api.observe_violations(self.loop.time, self._fail)
        story = asyncio.create_task(self._story(), name="story")
        await asyncio.wait((story, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if story.done():
            story.result()
        if self._failed.done():
            self._failed.result()

    async def _start_api(self, delay: Callable[[], float]) -> SingleApi | AggregatedApi:
        if self.scenario.aggregated:
            return await AggregatedApi.start(self.clock, self.rng, self.trace, delay)
        return SingleApi(*await start_server(self.clock, self.rng, delay))

    async def _story(self) -> None:
        await self.play()
        self.trace.note("network", "faults end")
        self.faults.is_disabled = True
        self._crashes.clear()
        self.processes[-1].crash = None
        self.nodes.heal()
        await self._quiet()
        if not self.processes[-1].is_working:
            raise Violation("controllers keep running", "the controllers have not started")
        FinalState(self.store, NAMESPACE, self.clock.now()).check()
        check_controller_state(self.processes[-1].controllers, self.store)
        self.api.check()
        self._check_metrics()

    async def _quiet(self) -> None:
        """Wait until the world is quiescent."""
        end = self.loop.time() + _UNTIL_QUIET
        silent, commits, before = 0.0, -1, 0
        while silent < QUIET_SECONDS:
            if self.loop.time() > end:
                raise Violation("the world becomes quiescent", f"writes continue after {_UNTIL_QUIET:g} s")
            await asyncio.sleep(_INTERVAL)
            now = reconciles(self.processes[-1].controllers)
            if self.invariants.commits == commits:
                silent += _INTERVAL
            else:
                silent, commits, before = 0.0, self.invariants.commits, now
        objects = sum(self.store.count(type.group_resource) for type in SANDPOOL)
        if now - before > RECONCILES_WHEN_QUIET * objects:
            details = f"{now - before} reconciles of {objects} objects without a write"
            raise Violation("the world becomes quiescent", details)

    def _check_metrics(self) -> None:
        """Check that the metrics count every ready claim exactly once.

        After a lost response or a crash a claim may be missing: the controllers cannot know whether they counted it,
        and counting twice would be worse.
        """
        lives = [process.controllers for process in self.processes]
        is_certain = len(lives) == 1 and not self.faults.losses
        recorded, sandboxes = sum(map(ready_claims_observed, lives)), sum(map(sandboxes_counted, lives))
        truth, assigned = len(self.invariants.ready_claims), self.invariants.adoptions + self.invariants.cold_starts
        if recorded > truth or (is_certain and recorded != truth):
            raise Violation(
                "metrics count every claim once", f"{recorded} latencies were recorded, {truth} claims became ready"
            )
        if sandboxes > assigned or (is_certain and sandboxes != assigned):
            raise Violation(
                "metrics count every claim once", f"{sandboxes} sandboxes were counted, {assigned} were assigned"
            )

    # --- the processes of the controllers -----------------------------------------------------------------------------

    def _drawn_crashes(self) -> Iterator[Crash]:
        for _ in range(self.rng.choice(self.profile.crashes)):
            yield Crash.draw(self.rng, self.profile.crash_writes)

    def start_controllers(self) -> None:
        number = len(self.processes)
        host = Process(f"controllers {number}")
        transport = self.api.controllers(host, self.faults, self.trace)
        crash = self._crashes.pop(0) if self._crashes else None
        self.trace.note("world", f"controllers {number} start, to crash at {crash}")
        process = ControllerProcess(
            host, transport, self.api.serve, self.clock, self.rng, crash, self._on_crash, self._fail, self.binder
        )
        self.processes.append(process)
        life = process.process.run(process.run())
        life.add_done_callback(self._on_exit)

    def _on_crash(self) -> None:
        process = self.processes[-1]
        self.api.crash()
        late = list(process.transport.under_way)
        for request in late:
            self.invariants.expect_late_write(request)
        self.trace.note("world", f"controllers {len(self.processes) - 1} crash, {len(late)} writes in flight")
        self.loop.call_later(self.rng.choice(self.profile.restart_delay), self.start_controllers, context=Context())

    def _on_exit(self, life: asyncio.Task[None]) -> None:
        if life.cancelled() or (error := life.exception()) is None:
            return
        if isinstance(error, Violation):
            self._fail(error)
        else:
            self._fail(Violation("controllers keep running", f"the controllers ended with {error!r}"))

    # --- failures -----------------------------------------------------------------------------------------------------

    def _client(self, name: str, faults: NetworkFaults) -> Client:
        transport = SimulatedTransport(self.api.transport(name), faults, self.trace, name)
        return Client(transport, field_manager=name)

    def _fail(self, violation: Violation) -> None:
        if self._violation is None:
            self._violation = violation
            self._lines = self.trace.lines()
            if not self._failed.done():
                self._failed.set_exception(violation)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an unhandled exception of a callback or of a task that no one awaits."""
        error = context.get("exception")
        if self._failed.done() or (Process.current() is not None and error is None):
            return
        self._fail(Violation("controllers keep running", f"{context.get('message')}: {error!r}"))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Disable logs and the garbage collector, which would run finalizers at times that the seed does not decide."""
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
