"""The controllers die at every write of a story: before it, while it is under way, and after it. Their successors find
everything as it should be, every time."""

from __future__ import annotations

import gc
from random import Random

import pytest

from sandpool.testing.simulation.crash import Death, Moment
from sandpool.testing.simulation.network_faults import Weather
from sandpool.testing.simulation.simulation import Outcome, Scenario, Simulation

# A world with a rollout, claims of all sorts and a pool that grows, and the same one for all deaths.
SEED = 31
DEEDS = 4


def live(deaths: tuple[Death, ...]) -> Outcome:
    outcome = Simulation(SEED, Scenario(deeds=DEEDS, deaths=deaths, weather=Weather(Random(SEED), lag=0.01))).run()
    outcome.check("tests/simulation -k deaths")
    return outcome


@pytest.mark.parametrize("moment", Moment)
def test_deaths_at_every_write(moment: Moment) -> None:
    writes = live(()).writes
    assert writes > 20
    for write in range(1, writes + 1):
        live((Death(write, moment),))
    gc.collect()


@pytest.mark.parametrize("moment", Moment)
def test_deaths_one_after_the_other(moment: Moment) -> None:
    """The successor dies as soon as it has written so much, and so does its own."""
    for write in range(1, 9):
        live(tuple(Death(write, moment) for _ in range(4)))
