"""The measurement of a node runs and measures; what it finds depends on the machine."""

from __future__ import annotations

import pytest

from benchmarks.node import run

pytestmark = pytest.mark.isolation


async def test_benchmark_measures_all_figures_and_leaves_nothing() -> None:
    figures = {figure.name: figure for figure in await run(rounds=1, number=2, idle=0.1)}
    assert len(figures) == 11
    assert figures["cold pod with network, create to Ready"].value > 0
    assert figures["status writes per pod, its deletion included"].reached
    assert figures["CPU of 2 warm sandboxes, frozen"].value == 0
    for kind in ("frozen", "not frozen"):
        assert 1 < figures[f"memory of a warm sandbox, {kind}"].value < 100
