"""Claims with variables in simulated worlds: with lost answers, and crashes between adoption, delivery and Ready.

``tests/support/simulation/late_binding.py`` has the invariants. Controllers that are broken on purpose show that they
are checked.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import pytest

from sandpool.controllers.claim import late_binding
from sandpool.controllers.claim.controller import ClaimController
from sandpool.testing.simulation.simulation import Scenario
from tests.support.simulation.late_binding import WITH_CRASHES, WITH_VARIABLES, LateBindingSimulation

WORLDS = 240
CHUNK = 40
PROFILES = (WITH_VARIABLES, WITH_CRASHES)
ONE = os.environ.get("SANDPOOL_SEED")

Patch = pytest.MonkeyPatch


def run(seed: int) -> LateBindingSimulation:
    profile = PROFILES[seed % len(PROFILES)]
    # Half of the worlds of each profile have our kinds in an aggregated API.
    simulation = LateBindingSimulation(seed, Scenario(profile=profile, aggregated=seed // len(PROFILES) % 2 == 1))
    simulation.run().check("tests/simulation/test_late_binding.py")
    return simulation


@pytest.mark.parametrize("first", [int(ONE)] if ONE is not None else range(0, WORLDS, CHUNK))
def test_variables_are_delivered_once_to_the_sandbox_of_their_claim(first: int) -> None:
    worlds = [run(seed) for seed in range(first, first + (CHUNK if ONE is None else 1))]
    assert ONE is not None or sum(len(world.binder.deliveries) for world in worlds) > CHUNK
    gc.collect()


def nothing_is_handed_over(patch: Patch) -> None:
    patch.setattr(late_binding, "due", lambda claim, sandbox, pod, bound: None)


def failures_are_ignored(patch: Patch) -> None:
    """A claim is Ready although its sandbox did not answer in time."""
    original = ClaimController._bind

    async def bind(self: Any, *arguments: Any) -> None:
        await original(self, *arguments)

    patch.setattr(ClaimController, "_bind", bind)


def restarted_sandboxes_stay_bound(patch: Patch) -> None:
    """What a sandbox has taken is believed to outlive its processes."""
    original = late_binding.due

    def due(claim: Any, sandbox: Any, pod: Any, bound: Any) -> Any:
        return None if bound is not None or claim.ready else original(claim, sandbox, pod, bound)

    patch.setattr(late_binding, "due", due)


@pytest.mark.parametrize(
    "mutation",
    [nothing_is_handed_over, failures_are_ignored, restarted_sandboxes_stay_bound],
    ids=lambda mutation: f"mutation-{mutation.__name__}",
)
def test_simulation_finds_mutation(mutation: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        worlds = (LateBindingSimulation(seed, Scenario(profile=WITH_VARIABLES)).run() for seed in range(40))
        found = next((world for world in worlds if world.violation is not None), None)
    gc.collect()
    assert found is not None, "no violation in 40 worlds"
