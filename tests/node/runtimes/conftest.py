"""Real sandboxes, and the proof after every test that none is left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandpool.testing.isolation import Rig, rig


@pytest.fixture
async def boxes() -> AsyncIterator[Rig]:
    async with rig() as made:
        yield made
