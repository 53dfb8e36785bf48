"""The measurement of sandboxes measures, and leaves none."""

from __future__ import annotations

import pytest

from benchmarks.sandboxes import run


@pytest.mark.isolation
async def test_every_runtime_is_measured() -> None:
    figures = await run(rounds=1, number=2)
    names = {figure.name for figure in figures}
    for what in ("start", "a first command", "another command", "pause", "resume", "delete"):
        assert f"bwrap: {what}" in names
    for what in ("a start", "a first command here", "another command inside"):
        assert f"bwrap: CPU time of {what}" in names
    assert all(figure.value > 0 for figure in figures)
