"""The controllers in worlds that chance decides, two thousand of them, the same ones in every run.

A failure prints its seed. ``SANDPOOL_SEED=123 .venv/bin/pytest tests/simulation/test_seeds.py -m "not long"`` is that
world again.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from random import SystemRandom

import pytest

from sandpool.testing.simulation.simulation import Outcome, Simulation

WORLDS = 2000
CHUNK = 50
ONE = os.environ.get("SANDPOOL_SEED")
MINUTES = float(os.environ.get("SANDPOOL_MINUTES", "10"))
# Worlds among fresh ones in which something was found: a claim made again of which nothing was noted, and one of which
# a sandbox was noted that it had lost.
FOUND = (849142431145, 271055908669)
# Of fresh worlds, so that several workers share them.
LANES = 4


def chunks() -> Iterator[range]:
    if ONE is not None:
        yield range(int(ONE), int(ONE) + 1)
        return
    for first in range(0, WORLDS, CHUNK):
        yield range(first, first + CHUNK)


def run(seed: int) -> Outcome:
    outcome = Simulation(seed).run()
    outcome.check()
    return outcome


@pytest.mark.parametrize("seeds", list(chunks()), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_seeds(seeds: range, record_property: Callable[[str, object], None]) -> None:
    outcomes = [run(seed) for seed in seeds]
    assert sum(outcome.writes for outcome in outcomes) > 0, "the controllers have done something"
    record_property("seeds", len(outcomes))
    gc.collect()


@pytest.mark.parametrize("seed", FOUND)
def test_where_something_was_found(seed: int) -> None:
    run(seed)


def test_there_are_enough_of_them() -> None:
    assert ONE is not None or sum(len(seeds) for seeds in chunks()) >= 2000


@pytest.mark.long
@pytest.mark.parametrize("lane", range(LANES))
def test_fresh_seeds(lane: int) -> None:
    """New worlds for as long as there is time, each lane its share of it."""
    end = time.monotonic() + MINUTES * 60 / LANES * 2
    first = SystemRandom().randrange(10**9) * 1000
    done = 0
    while time.monotonic() < end:
        run(first + done)
        done += 1
        if done % CHUNK == 0:
            gc.collect()
    assert done > 0
