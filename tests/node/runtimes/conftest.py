"""Real sandboxes, and the proof after every test that none is left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandpool.testing.isolation import RUNTIMES, NotHere, Rig, rig


@pytest.fixture(params=RUNTIMES)
async def boxes(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    try:
        async with rig(RUNTIMES[request.param]) as made:
            yield made
    except NotHere as missing:
        pytest.skip(str(missing))
