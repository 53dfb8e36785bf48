"""The measurement of sandboxes measures, and leaves none."""

from __future__ import annotations

import pytest

from sandpool.bench.sandboxes import run


@pytest.mark.isolation
async def test_it_measures_every_runtime() -> None:
    figures = await run(rounds=1, number=2)
    names = {figure.name for figure in figures}
    assert {"bwrap: start", "bwrap: command", "bwrap: pause", "bwrap: resume", "bwrap: delete"} <= names
    assert all(figure.value > 0 for figure in figures)
