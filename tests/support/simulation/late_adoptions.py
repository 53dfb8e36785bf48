"""Late adoptions: each process of the controllers is killed while an adoption is in flight, and a faster one follows.

The successor gives the claim another sandbox, unless it happens to choose the same one. Then the adoption of the killed
process is committed, and the claim owns two sandboxes until the controllers delete one.
"""

from __future__ import annotations

from typing import Final

from sandpool.testing.simulation.crash import Crash, CrashPoint, WriteKind
from sandpool.testing.simulation.simulation import Scenario
from sandpool.testing.simulation.world import World
from tests.support.simulation.profiles import CRASHES_AT_ADOPTION

_CLAIMS: Final = 8
_REPLICAS: Final = 6


def late_adoptions(seed: int) -> Scenario:
    """The scenario; the seed decides the delays."""
    crashes = (Crash(1, CrashPoint.SENT, WriteKind.ADOPTION),) * _CLAIMS
    return Scenario(profile=CRASHES_AT_ADOPTION, crashes=crashes, story=claims_one_after_the_other)


async def claims_one_after_the_other(world: World) -> None:
    """Claim a sandbox after a pause in which a late adoption is, or is not, committed."""
    await world.template()
    await world.pool(replicas=_REPLICAS)
    await world.filled()
    for number in range(_CLAIMS):
        await world.claim(f"c{number}")
        await world.clock.sleep(world.rng.choice((0.5, 2.0, 6.0)))
