"""The world that controllers are tested in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.testing.backend import InProcessBackend
from sandpool.testing.world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend = await InProcessBackend.start(tmp_path)
    world = World(backend)
    await world.start()
    yield world
    await world.stop()
    await backend.close()
