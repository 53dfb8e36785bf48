"""A pytest plugin for tests of code that uses agent sandboxes. Name it in a ``conftest.py``::

    pytest_plugins = ["sandpool.testing.fixtures"]

See docs/testing.md. What a simulation needs is imported by the first test that asks for one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from sandpool.testing.simulation.world import World


class Simulate(Protocol):
    def __call__(self, story: Callable[[World], Awaitable[None]], seeds: Iterable[int] = ...) -> None:
        """Live a story once per seed, each time in a world of its own."""
        ...


@pytest.fixture
def simulate() -> Simulate:
    """Lives a story in simulated worlds, one per seed, and checks that the world is in order afterwards."""
    from sandpool.testing.simulation.simulation import Scenario, Simulation

    def live(story: Callable[[World], Awaitable[None]], seeds: Iterable[int] = range(10)) -> None:
        for seed in seeds:
            Simulation(seed, Scenario(story=story)).run().check(replay="")

    return live
