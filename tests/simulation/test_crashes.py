"""Kill the controllers at every write of one scenario: before it, while it is in flight, and after it.

Their successors restore every invariant, every time.
"""

from __future__ import annotations

import gc
from random import Random

import pytest

from sandpool.testing.simulation.crash import Crash, CrashPoint
from sandpool.testing.simulation.network_faults import NetworkFaults
from sandpool.testing.simulation.simulation import Outcome, Scenario
from tests.support.simulation.users import UserSimulation

# A world with a rollout, claims of all sorts and a pool that grows; the same for all crashes.
SEED = 31
ACTIONS = 4


def run(crashes: tuple[Crash, ...], *, aggregated: bool = False) -> Outcome:
    scenario = Scenario(crashes=crashes, faults=NetworkFaults(Random(SEED), lag=0.01), aggregated=aggregated)
    outcome = UserSimulation(SEED, scenario, actions=ACTIONS).run()
    outcome.check("tests/simulation/test_crashes.py")
    return outcome


@pytest.mark.parametrize("point", CrashPoint)
def test_successor_recovers_from_a_crash_at_every_write(point: CrashPoint) -> None:
    writes = run(()).writes
    assert writes > 20
    for write in range(1, writes + 1):
        run((Crash(write, point),))
    gc.collect()


def test_successor_recovers_when_its_api_crashes_at_every_write() -> None:
    """Our kinds are in the process that is killed, and the write is on the volume or lost."""
    writes = run((), aggregated=True).writes
    assert writes > 20
    for write in range(1, writes + 1):
        run((Crash(write, CrashPoint.SENT),), aggregated=True)
    gc.collect()


@pytest.mark.parametrize("point", CrashPoint)
def test_successors_recover_from_repeated_crashes(point: CrashPoint) -> None:
    """Each successor crashes at the same write, four times in a row."""
    for write in range(1, 9):
        run(tuple(Crash(write, point) for _ in range(4)))
