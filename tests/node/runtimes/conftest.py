"""Real sandboxes, and the proof after every test that none is left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandpool.testing.isolation import RUNTIMES, SLOW, NotHere, Rig, rig


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in RUNTIMES])
async def boxes(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    try:
        async with rig(RUNTIMES[request.param]) as made:
            yield made
    except NotHere as missing:
        pytest.skip(str(missing))
