"""Sandboxes beside neighbours they must not get hold of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from sandpool.testing.escape.neighbourhood import Neighbourhood, neighbourhood
from sandpool.testing.isolation import Rig, rig


@pytest.fixture
def neighbours() -> Iterator[Neighbourhood]:
    with neighbourhood() as made:
        yield made


@pytest.fixture
async def boxes(neighbours: Neighbourhood) -> AsyncIterator[Rig]:
    """After the neighbours, so that what the launcher is started from has their secret in its environment."""
    async with rig() as made:
        yield made
