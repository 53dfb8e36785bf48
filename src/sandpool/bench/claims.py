"""``sandpool bench claims``: measure the latency and the cost of claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar

from sandpool.api.kinds import POD
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views import PodView
from sandpool.bench.accounting import RequestCounts, is_about
from sandpool.bench.calls import ServerCall, calls_about
from sandpool.bench.environments import Place
from sandpool.bench.figures import percentile, ranked
from sandpool.bench.load import Claim, Load, Outcome, Show
from sandpool.bench.members import Members, mark_of
from sandpool.bench.namespace_setup import POOL, Ground
from sandpool.bench.scenarios import Scenario
from sandpool.bench.usage import Usage
from sandpool.engine.clock import Clock
from sandpool.explain.audit import AuditedRequest
from sandpool.install.errors import InstallError

# Seconds: limits for filling a pool, and the silence after which a run counts as finished. The audit log may lag by a
# second.
_TIMEOUT: Final = 600.0
_SILENCE: Final = 2.5
# Seconds in which nodes report an image that they cannot pull, and the reasons they give.
_IMAGE_CHECK_SECONDS: Final = 60.0
#: A sandbox with a usable image is ready before. After this time the user hears what the pods wait for.
_SILENT_SECONDS: Final = 9.0
_UNUSABLE_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")

PERCENTILES: Final = (50, 90, 99, 100)

T = TypeVar("T")

#: The mark of sandboxes from the changed template.
NEW: Final = "new"


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout: ``changed`` is when the API accepted the new template, ``finished`` when the whole pool used it, and
    ``stale`` counts later claims that got a sandbox of the old template."""

    changed: float
    finished: float
    stale: int


@dataclass(frozen=True, slots=True)
class Departure:
    """The cost of deleting all claims, with their sandboxes, at the end."""

    seconds: float
    request_counts: RequestCounts
    used: Usage


@dataclass(frozen=True, slots=True)
class Report:
    """One scenario in one environment, from the first claim until all activity has ended.

    ``used`` counts from the first claim until all activity has ended, because a controller may record the latency of a
    claim after the client has seen it Ready; its ``starved``, and ``cpu_until_ready``, count until the last Ready.
    ``filled`` is the seconds until the new pool was full, ``refilled`` those from the last Ready until it was full
    again. ``levels`` holds the number of ready members over time, ``calls`` the API calls of the claims at some
    percentiles, by name. Times are monotonic seconds."""

    scenario: Scenario
    place: str
    outcome: Outcome
    warm: int
    cold: int
    request_counts: RequestCounts
    used: Usage
    refilled: float
    filled: float = 0.0
    levels: list[tuple[float, int]] = field(default_factory=list)
    rollout: Rollout | None = None
    left_out: tuple[str, ...] = ()
    departure: Departure | None = None
    calls: dict[str, list[ServerCall]] = field(default_factory=dict)
    nodes: str = "simulated"  # what runs the pods
    cpu_until_ready: dict[str, float] = field(default_factory=dict)  # seconds, by process

    @property
    def count(self) -> int:
        return len(self.outcome.claims)

    def latency(self, percent: float) -> float:
        """Return a percentile in milliseconds; infinite if no claim was served."""
        return percentile(self.outcome.latencies, percent) * 1e3 if self.outcome.latencies else float("inf")

    @property
    def mean_latency(self) -> float | None:
        """Mean latency that the client saw, in milliseconds."""
        latencies = self.outcome.latencies
        return sum(latencies) / len(latencies) * 1e3 if latencies else None

    def per_claim(self, count: float) -> float:
        return count / max(self.count, 1)

    @property
    def examples(self) -> list[tuple[int, Claim]]:
        return examples(self.outcome)


def examples(outcome: Outcome) -> list[tuple[int, Claim]]:
    """Return the claim at each percentile."""
    served = sorted(
        (claim for claim in outcome.claims if claim.latency is not None), key=lambda claim: claim.latency or 0.0
    )
    return [(percent, ranked(served, percent)) for percent in PERCENTILES] if served else []


async def measure(
    place: Place,
    scenario: Scenario,
    clock: Clock,
    rng: Random,
    show: Show,
    *,
    namespace: str = "",
    image: str = "",
) -> Report:
    """Fill a pool in a new namespace, apply the load and wait until all activity has ended.

    Sandboxes run ``image``; without one they have the usual size and suit simulated nodes."""
    ground = Ground(place.client, clock, namespace or f"bench-{scenario.name}", image, show, remove=place.shared)
    async with ground, Members(place.client, clock, ground.namespace, POOL) as members:
        return await _Run(place, scenario, clock, rng, show, ground, members).report()


@dataclass(slots=True)
class _Run:
    place: Place
    scenario: Scenario
    clock: Clock
    rng: Random
    show: Show
    ground: Ground
    members: Members
    changed: float | None = None  # when the API had taken the new template
    finished: float | None = None  # when the pool was full of it

    async def report(self) -> Report:
        clock, scenario, claims = self.clock, self.scenario, self.scenario.load.claims > 0
        if claims:
            filled = await self._fill()
            await self._rest()
            await self.ground.call(self.scenario.load.at_once)
        since, before, begin = len(self._asked()), await self.place.usage(), clock.monotonic()
        if claims:
            outcome = await self._load()
        else:
            filled = await self._fill()
            outcome = Outcome([Claim(name, begin, begin, ready=at) for name, at in self.members.first_ready.items()])
        waited = (await self.place.usage()).since(before)
        self.show("waiting until the pool is full again")
        await self._full(NEW if scenario.rollout_after is not None else "")
        full = clock.monotonic()
        last = max((claim.ready for claim in outcome.claims if claim.ready is not None), default=begin)
        await self._rest()
        used, asked = (await self.place.usage()).since(before), self._asked()[since:]
        calls = self._calls(outcome) if claims else {}
        sandboxes = await self.ground.sandboxes({claim.sandbox for claim in outcome.claims})
        warm = sum(self.ground.is_warm(sandbox) for sandbox in sandboxes.values())
        return Report(
            scenario,
            self.place.name,
            outcome,
            warm,
            len(sandboxes) - warm,
            RequestCounts.of(asked, self.place.writer),
            replace(used, starved=waited.starved),
            full - last,
            filled,
            list(_since(begin, self.members.levels)),
            self._rollout(outcome.claims, sandboxes),
            self.place.left_out,
            await self._depart(outcome) if scenario.depart else None,
            calls,
            self.place.nodes,
            waited.cpu,
        )

    async def _fill(self) -> float:
        """Create the pool and return the seconds until it was full."""
        self.show(f"filling a pool of {self.scenario.pool}")
        begin = self.clock.monotonic()
        await self.ground.make_pool(self.scenario.pool, replace_at_once=self.scenario.rollout_after is not None)
        async with _meanwhile(self._check_image()) as checking:
            filling = asyncio.ensure_future(self._full())
            await asyncio.wait((filling, checking), return_when=asyncio.FIRST_COMPLETED)
            if not filling.done() and (problem := checking.result()):
                filling.cancel()
                raise InstallError(problem)
            await filling
        return self.clock.monotonic() - begin

    async def _check_image(self) -> str:
        """Return why no sandbox of a cluster can start with this image, as soon as the nodes say so.

        A node that cannot reach a registry says so late or never, so silence is told too."""
        begin, is_shown = self.clock.monotonic(), False
        while self.place.shared and (waited := self.clock.monotonic() - begin) < _IMAGE_CHECK_SECONDS:
            if self.members.ready:
                return ""
            pods = [PodView.from_object(pod) for pod in await self._pods()]
            for waiting in (pod.waiting for pod in pods):
                if any(reason in waiting for reason in _UNUSABLE_IMAGE):
                    return f"the sandboxes cannot start ({waiting}): name an image that the nodes can pull with --image"
            if waited >= _SILENT_SECONDS and not is_shown:
                is_shown = True
                self.show(
                    f"no sandbox is ready after {waited:.0f} s ({_state_of(pods)}); if the nodes cannot pull "
                    f"{self.ground.image}, name another image with --image"
                )
            await self.clock.sleep(1)
        return ""

    async def _pods(self) -> Sequence[SharedObject]:
        found: Sequence[SharedObject] = (await self.place.client.list(POD, self.ground.namespace))["items"]
        return found

    async def _full(self, mark: str = "") -> None:
        await self.members.full(self.scenario.pool, _TIMEOUT, marked=mark)

    async def _load(self) -> Outcome:
        self.show("making claims")
        most_waiting = self.scenario.load.most_waiting
        client, namespace = self.place.client, self.ground.namespace
        async with _meanwhile(self._change()) as changing:
            lifetime = self.scenario.lifetime
            async with Load(
                client, self.clock, namespace, POOL, most_waiting=most_waiting, lifetime=lifetime, show=self.show
            ) as load:
                between = self._full if self.scenario.refill else None
                waves, timeout = self.scenario.load.waves(self.rng), self.scenario.timeout
                outcome = await load.run(waves, timeout=timeout, between=between)
            await changing
        return outcome

    async def _change(self) -> None:
        if self.scenario.rollout_after is not None:
            await self.clock.sleep(self.scenario.rollout_after)
            self.show("changing the template")
            await self.ground.change_template(NEW)
            self.changed = self.clock.monotonic()
            await self._full(NEW)
            self.finished = self.clock.monotonic()

    async def _depart(self, outcome: Outcome) -> Departure:
        self.show("deleting the claims")
        since, before, begin = len(self._asked()), await self.place.usage(), self.clock.monotonic()
        await self.ground.delete_claims([claim.name for claim in outcome.claims])
        seconds = self.clock.monotonic() - begin
        await self._rest()
        used, asked = (await self.place.usage()).since(before), self._asked()[since:]
        return Departure(seconds, RequestCounts.of(asked, self.place.writer), used)

    def _calls(self, outcome: Outcome) -> dict[str, list[ServerCall]]:
        audit = self.place.audit
        if audit is None:
            return {}
        origin = self.clock.now().timestamp() - self.clock.monotonic()
        return {
            claim.name: calls_about(audit.path, self.ground.namespace, claim, self.place.writer, origin)
            for _, claim in examples(outcome)
        }

    def _rollout(self, claims: Iterable[Claim], sandboxes: dict[str, Object]) -> Rollout | None:
        if self.changed is None or self.finished is None:
            return None
        return Rollout(self.changed, self.finished, stale(claims, sandboxes, self.changed))

    def _asked(self) -> list[AuditedRequest]:
        """Return the requests of this run so far."""
        audit = self.place.audit
        return [each for each in audit.requests() if is_about(each, self.ground.namespace)] if audit is not None else []

    async def _rest(self) -> None:
        """Wait until no request arrives for a while: annotations and events are written late.

        The wait is bounded, for writers that never rest."""
        if self.place.audit is None:
            return
        before, end = -1, self.clock.monotonic() + _TIMEOUT
        while (asked := len(self._asked())) != before and self.clock.monotonic() < end:
            before = asked
            await self.clock.sleep(_SILENCE)


def stale(claims: Iterable[Claim], sandboxes: dict[str, Object], changed: float) -> int:
    """Count the claims after the change that got one of these sandboxes without the new mark."""
    later = (sandboxes.get(claim.sandbox) for claim in claims if claim.due > changed)
    return sum(mark_of(sandbox) != NEW for sandbox in later if sandbox is not None)


def _since(begin: float, levels: list[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Return the level at the beginning and its later changes."""
    yield begin, next((level for at, level in reversed(levels) if at <= begin), 0)
    yield from ((at, level) for at, level in levels if at > begin)


def _state_of(pods: Sequence[PodView]) -> str:
    """The reason for which the first pod that gives one waits."""
    for pod in pods:
        if pod.waiting or pod.unschedulable:
            return pod.waiting or (pod.scheduling.message if pod.scheduling is not None else "unschedulable")
    count = "1 pod exists and does" if len(pods) == 1 else f"{len(pods)} pods exist and do"
    return f"{count} not say why" if pods else "no pod exists"


@asynccontextmanager
async def _meanwhile(work: Coroutine[None, None, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run a coroutine beside the body."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
