"""What docs/testing.md shows works."""

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


def shown() -> dict[str, Any]:
    """The examples of the page, executed."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(block, names)
    return names


@pytest.mark.parametrize("test", [name for name in shown() if name.startswith("test_")])
def test_the_examples(test: str, simulate: fixtures.Simulate) -> None:
    shown()[test](simulate)


def test_the_plugin_is_named_as_it_is_called() -> None:
    assert shown()["pytest_plugins"] == [fixtures.__name__]


def test_a_story_that_fails_tells_its_seed(simulate: fixtures.Simulate) -> None:
    async def story(world: World) -> None:
        await world.template("python")
        raise ValueError("of no use")

    with pytest.raises(SimulationFailure, match="seed 3 breaks the law no surprises: ValueError: of no use"):
        simulate(story, seeds=[3])


def test_waiting_for_what_does_not_come_ends(simulate: fixtures.Simulate) -> None:
    async def story(world: World) -> None:
        await world.template("python")
        await world.pool("pool", replicas=1, template="missing")
        with pytest.raises(TimeoutError, match="0 ready sandboxes"):
            await world.filled("pool", within=30)
        await world.client.delete(SANDBOX_WARM_POOL, "pool", world.namespace)

    simulate(story, seeds=[1])
