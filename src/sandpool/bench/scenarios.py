"""Load scenarios: when claims are created, and the size of their pool.

A scenario consists of waves of claims. Each claim of a wave is created at its own time, whether or not earlier claims
are ready (an open loop: a slow server does not slow down the arrivals). A wave begins when all claims of the previous
one are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

Wave = Sequence[float]  # the seconds after its beginning at which claims are created, in order


@dataclass(frozen=True, slots=True)
class Bursts:
    """``count`` bursts of ``size`` claims at ``qps`` per second; 0 creates a burst at once.

    Without claims, only the fill of the pool is measured."""

    size: int
    count: int = 1
    qps: float = 0.0

    def waves(self, rng: Random) -> list[Wave]:
        spacing = 1 / self.qps if self.qps else 0.0
        return [[number * spacing for number in range(self.size)] for _ in range(self.count if self.size else 0)]

    @property
    def claims(self) -> int:
        return self.size * self.count

    @property
    def at_once(self) -> int:
        return self.size

    @property
    def most_waiting(self) -> float:
        """Return the limit of waiting claims: a whole burst."""
        return float("inf")


@dataclass(frozen=True, slots=True)
class Stream:
    """``rate`` claims per second on average (a Poisson process).

    A system that is behind by the claims of ``max_wait`` seconds does not keep up."""

    rate: float
    seconds: float
    max_wait: float = 2.0

    def waves(self, rng: Random) -> list[Wave]:
        arrivals: list[float] = []
        moment = rng.expovariate(self.rate)
        while moment < self.seconds:
            arrivals.append(moment)
            moment += rng.expovariate(self.rate)
        return [arrivals]

    @property
    def claims(self) -> int:
        return round(self.rate * self.seconds)

    @property
    def at_once(self) -> int:
        """Return 1: claims arrive one by one."""
        return 1

    @property
    def most_waiting(self) -> float:
        return self.max_wait * self.rate


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load on a pool of ``pool`` replicas.

    With ``refill`` a wave also waits until the pool is full again. The template changes ``rollout_after`` seconds after
    the load begins. A claim that is not ready ``timeout`` seconds after the last arrival of its wave counts as not
    served. With ``depart`` all claims are deleted at the end, and the cost of that is measured too. With a ``lifetime``
    each claim is deleted that many seconds after it was ready, while others come.
    """

    name: str
    load: Bursts | Stream
    pool: int
    # Upper bounds of latency percentiles, in milliseconds.
    targets: tuple[tuple[float, float], ...] = ()
    refill: bool = False
    rollout_after: float | None = None
    timeout: float = 60.0
    depart: bool = False
    lifetime: float | None = None


#: Parameters follow the published load tests, so that figures can be compared.
SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("single", Bursts(1, 10, 1), 2),
        Scenario("burst", Bursts(300), 600, ((50, 40), (99, 100))),
        Scenario("bursts", Bursts(300, 5, 300), 600),
        Scenario("sustained", Stream(1500, 60), 600, ((99, 150),)),
        Scenario("fill", Bursts(0), 600),
        Scenario("rollout-under-load", Stream(30, 30), 600, rollout_after=10.0),
        # More claims than sandboxes, repeated when the pool has recovered.
        Scenario("drain-and-recover", Bursts(900, 2), 600, refill=True),
    )
}

#: Names of these scenarios in other load tests.
ALIASES: Final = {"burst-300": "burst", "burst-300x5": "bursts"}


def scenario_named(name: str) -> Scenario:
    return SCENARIOS[ALIASES.get(name, name)]
