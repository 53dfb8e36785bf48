"""The examples of docs/testing.md work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.testing import fixtures
from sandpool.testing.simulation.simulation import SimulationFailure
from sandpool.testing.simulation.world import World

simulate = fixtures.simulate

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


def examples() -> dict[str, Any]:
    """Execute the examples of the page and return their names."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(block, names)
    return names


@pytest.mark.parametrize("test", [name for name in examples() if name.startswith("test_")])
def test_documented_example(test: str, simulate: fixtures.Simulate) -> None:
    examples()[test](simulate)


def test_documented_plugin_name_is_the_module_name() -> None:
    assert examples()["pytest_plugins"] == [fixtures.__name__]


def test_failed_story_reports_its_seed(simulate: fixtures.Simulate) -> None:
    async def story(world: World) -> None:
        await world.template("python")
        raise ValueError("of no use")

    with pytest.raises(
        SimulationFailure, match="seed 3 violates the invariant no unexpected exception: ValueError: of no use"
    ):
        simulate(story, seeds=[3])


def test_filled_times_out(simulate: fixtures.Simulate) -> None:
    async def story(world: World) -> None:
        await world.template("python")
        await world.pool("pool", replicas=1, template="missing")
        with pytest.raises(TimeoutError, match="0 ready sandboxes"):
            await world.filled("pool", within=30)
        await world.client.delete(SANDBOX_WARM_POOL, "pool", world.namespace)

    simulate(story, seeds=[1])
