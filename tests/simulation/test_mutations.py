"""The simulation finds every mutation of the controllers, in worlds that the unmodified controllers survive."""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.simulation.users import UserSimulation

# The most worlds that it may take to find a mutation.
WORLDS = 40

Mutation = Callable[[pytest.MonkeyPatch], None]
Worlds = Callable[[int], UserSimulation]


Case = tuple[Mutation, Worlds, int]


def load() -> ModuleType:
    """Load the mutations; their module is not part of a package."""
    spec = util.spec_from_file_location("mutations", Path(__file__).parent / "mutations.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_loaded = load()
MUTATIONS: tuple[Case, ...] = _loaded.MUTATIONS
AGGREGATED: tuple[Case, ...] = _loaded.AGGREGATED


@pytest.mark.parametrize(
    ("mutation", "world", "first"),
    (*MUTATIONS, *AGGREGATED),
    ids=[
        f"mutation-{mutation.__name__}{suffix}"
        for suffix, cases in (("", MUTATIONS), ("-aggregated", AGGREGATED))
        for mutation, _, _ in cases
    ],
)
def test_simulation_finds_mutation(mutation: Mutation, world: Worlds, first: int) -> None:
    worlds = range(first, first + WORLDS)
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        found = next((seed for seed in worlds if world(seed).run().violation is not None), None)
    gc.collect()
    assert found is not None, f"no violation in {WORLDS} worlds"
    for seed in range(first, found + 1):
        world(seed).run().check("tests/simulation -k mutation")
    gc.collect()


def test_at_least_ten_mutations_exist() -> None:
    assert len(MUTATIONS) >= 10
