"""The controllers in two thousand simulated worlds, the same ones in every run. In every second one our kinds are in
an aggregated API.

A failure prints its seed. ``SANDPOOL_SEED=123 .venv/bin/pytest tests/simulation/test_seeds.py -m "not long"`` replays
that world.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from random import SystemRandom

import pytest

from sandpool.testing.simulation.simulation import Outcome, Scenario
from tests.support.simulation.users import UserSimulation

WORLDS = 2000
CHUNK = 50
ONE = os.environ.get("SANDPOOL_SEED")
MINUTES = float(os.environ.get("SANDPOOL_MINUTES", "10"))
# Seeds of random worlds that found bugs: a recreated claim without annotations, and a claim with an annotation that
# named a sandbox it had lost.
FOUND = (849142431145, 271055908669)
# Parallel parts of the test of fresh seeds, for several pytest workers.
PARTS = 4


def chunks() -> Iterator[range]:
    if ONE is not None:
        yield range(int(ONE), int(ONE) + 1)
        return
    for first in range(0, WORLDS, CHUNK):
        yield range(first, first + CHUNK)


def run(seed: int, *, aggregated: bool | None = None) -> Outcome:
    """Run a world. ``aggregated`` is by default decided by the seed."""
    aggregated = seed % 2 == 1 if aggregated is None else aggregated
    outcome = UserSimulation(seed, Scenario(aggregated=aggregated)).run()
    outcome.check()
    return outcome


@pytest.mark.parametrize("seeds", list(chunks()), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_seeds(seeds: range, record_property: Callable[[str, object], None]) -> None:
    outcomes = [run(seed) for seed in seeds]
    assert sum(outcome.writes for outcome in outcomes) > 0, "the controllers wrote nothing"
    record_property("seeds", len(outcomes))
    gc.collect()


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_once_found_bugs(seed: int) -> None:
    run(seed, aggregated=False)


def test_at_least_two_thousand_seeds_run() -> None:
    assert ONE is not None or sum(len(seeds) for seeds in chunks()) >= 2000


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_fresh_seeds(part: int) -> None:
    """Run new worlds until the time is up; each part gets its share of the time."""
    end = time.monotonic() + MINUTES * 60 / PARTS * 2
    first = SystemRandom().randrange(10**9) * 1000
    done = 0
    while time.monotonic() < end:
        run(first + done)
        done += 1
        if done % CHUNK == 0:
            gc.collect()
    assert done > 0
