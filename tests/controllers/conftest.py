"""The world that controllers are tested in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.server.app import ApiServer
from sandpool.testing.world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    server = ApiServer(tmp_path)
    await server.start()
    world = World(server)
    await world.controllers.start()
    yield world
    await world.stop()
    await server.stop()
