"""Real sandboxes, and the proof after every test that none is left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.isolation import BUILT, RUNTIMES, SLOW, NotHere, Rig, rig


def marks(runtime: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] * (runtime in SLOW) + [pytest.mark.built] * (runtime in BUILT)


@pytest.fixture(params=[pytest.param(name, marks=marks(name)) for name in RUNTIMES])
async def boxes(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    try:
        async with rig(RUNTIMES[request.param]) as made:
            yield made
    except NotHere as missing:
        pytest.skip(str(missing))
