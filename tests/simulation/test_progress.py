"""Pools are refilled although claims never pause."""

from __future__ import annotations

import gc

import pytest

from sandpool.testing.simulation.liveness import steady_load
from sandpool.testing.simulation.simulation import Simulation

WORLDS = 10


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_pool_that_is_short_gets_a_member_however_many_claims_come(seed: int) -> None:
    Simulation(seed, steady_load(seed)).run().check("tests/simulation -k however_many_claims_come")
    gc.collect()
