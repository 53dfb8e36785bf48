"""Sandboxes beside neighbours they must not get hold of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.escape.neighbourhood import Neighbourhood, neighbourhood
from tests.support.isolation import BUILT, RUNTIMES, NotHere, Rig, rig


@pytest.fixture
def neighbours() -> Iterator[Neighbourhood]:
    with neighbourhood() as made:
        yield made


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.built] * (name in BUILT)) for name in RUNTIMES])
async def boxes(neighbours: Neighbourhood, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """After the neighbours, so that what the launcher is started from has their secret in its environment."""
    try:
        async with rig(RUNTIMES[request.param]) as made:
            yield made
    except NotHere as missing:
        pytest.skip(str(missing))
