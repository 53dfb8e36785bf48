"""Real sandboxes for a long time: nothing leaks, nothing acknowledged is lost, every command ran once or said not."""

from __future__ import annotations

import os
from pathlib import Path
from random import SystemRandom

import pytest

from tests.support.soak.soak import soak

pytestmark = [pytest.mark.isolation, pytest.mark.long]

MINUTES = float(os.environ.get("SANDPOOL_SOAK_MINUTES", "30"))
SEED = int(os.environ.get("SANDPOOL_SEED", "0")) or SystemRandom().randrange(1, 1 << 32)


async def lived_through(directory: Path, seed: int, seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nsoak of {seconds:g} s: SANDPOOL_SEED={seed}", flush=True)  # noqa: T201 - progress of a long test
        try:
            deeds = await soak(directory, seed, seconds)
        except Exception as error:
            error.add_note(f"SANDPOOL_SEED={seed}")  # what workers of pytest-xdist print is not shown
            raise
        print(f"soak with SANDPOOL_SEED={seed}: {deeds}", flush=True)  # noqa: T201
    assert deeds["kill"] > 2
    assert deeds["commands done"] > deeds.get("commands unknown", 0)
    assert {"claim", "command", "execute", "write", "sleep", "deletion"} <= deeds.keys()


async def test_one_minute_loses_and_leaks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await lived_through(tmp_path, 4711, 60.0, capsys)


async def test_thirty_minutes_lose_and_leak_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The duration comes from SANDPOOL_SOAK_MINUTES, the seed from SANDPOOL_SEED or at random."""
    await lived_through(tmp_path, SEED, MINUTES * 60, capsys)
