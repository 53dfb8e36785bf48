"""A pytest plugin for tests of code that uses agent sandboxes. Name it in a ``conftest.py``::

    pytest_plugins = ["sandpool.testing.fixtures"]

See docs/testing.md. The simulation is imported by the first test that uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from sandpool.testing.simulation.world import World


class Simulate(Protocol):
    """The type of the fixture ``simulate``."""

    def __call__(self, story: Callable[[World], Awaitable[None]], seeds: Iterable[int] = ...) -> None:
        """Run a story once per seed, each time in a new world."""
        ...


@pytest.fixture
def simulate() -> Simulate:
    """Run a story in simulated worlds, one per seed, and check the invariants afterwards."""
    from sandpool.testing.simulation.simulation import Scenario, Simulation

    def live(story: Callable[[World], Awaitable[None]], seeds: Iterable[int] = range(10)) -> None:
        for seed in seeds:
            Simulation(seed, Scenario(story=story)).run().check(replay="")

    return live
