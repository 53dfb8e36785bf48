"""Pools are refilled under a continuous load of claims."""

from __future__ import annotations

import gc

import pytest

from sandpool.testing.simulation.liveness import steady_load
from sandpool.testing.simulation.simulation import Simulation

WORLDS = 10


@pytest.mark.parametrize("seed", range(WORLDS))
def test_short_pool_gets_members_under_continuous_claims(seed: int) -> None:
    Simulation(seed, steady_load(seed)).run().check("tests/simulation -k continuous_claims")
    gc.collect()
