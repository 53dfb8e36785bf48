"""Pools are refilled under a continuous load of claims."""

from __future__ import annotations

import gc

import pytest

from tests.support.simulation.liveness import steady_load
from tests.support.simulation.users import UserSimulation

WORLDS = 10


@pytest.mark.parametrize("seed", range(WORLDS))
def test_short_pool_gets_members_under_continuous_claims(seed: int) -> None:
    UserSimulation(seed, steady_load(seed)).run().check("tests/simulation -k continuous_claims")
    gc.collect()
