"""Claims that never pause, and the law that pools are refilled all the same.

Refilling gives way to claims (``engine.background``). A load that does not end would keep a pool empty for ever if it
did so without bounds, and in worlds that become quiet sooner or later nobody would notice. So here somebody claims
again whenever fewer than a few claims are being looked at, and a pool that is short must get a member again and again.
"""

from __future__ import annotations

from random import Random
from typing import Final

from sandpool.api.kinds import SANDBOX, SANDBOX_WARM_POOL
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.network_faults import Weather
from sandpool.testing.simulation.object_facts import is_deleting, owner_uid, uid_of
from sandpool.testing.simulation.simulation import Scenario
from sandpool.testing.simulation.world import World

#: Seconds within which a pool that is short gets a member: the patience of the gate, a few requests, and a rest.
BOUND: Final = 4.0
# Seconds for which somebody always claims.
_LENGTH: Final = 12.0
# Claims that are being looked at all the time, and seconds between two looks at how many there are.
_CROWD: Final = 3
_LOOK: Final = 0.02
_REPLICAS: Final = 4


def steady_load(seed: int) -> Scenario:
    """On a network on which a claim takes a while, or it would take thousands to keep somebody busy."""
    return Scenario(story=claims_without_a_pause, weather=Weather(Random(seed), lag=0.15))


async def claims_without_a_pause(world: World) -> None:
    """A story. Raises ``Violation`` if the pool is not refilled."""
    clock = world.clock
    await world.template()
    pool = uid_of(await world.pool(replicas=_REPLICAS))
    await world.filled()
    watched = Refill(world, pool)
    end = clock.monotonic() + _LENGTH
    claims = 0
    while clock.monotonic() < end:
        if world.claims_in_hand < _CROWD:
            claims += 1
            await world.claim(f"c{claims}")
        await clock.sleep(_LOOK)
        watched.check()
    if watched.members <= _REPLICAS:
        raise Violation("refill goes on", f"{claims} claims were made, and no member of the pool was replaced")


class Refill:
    """Looks at how many members a pool has and has had."""

    def __init__(self, world: World, pool: str) -> None:
        self.world = world
        self.pool = pool
        self._known: set[str] = set()
        self._since = world.clock.monotonic()  # when it last was full, or got a member

    @property
    def members(self) -> int:
        """That there have been."""
        return len(self._known)

    def check(self) -> None:
        now = self.world.clock.monotonic()
        store, namespace = self.world.simulation.store, self.world.namespace
        boxes = [entry.decode() for entry in store.scan(SANDBOX.group_resource, namespace)]
        present = {uid_of(box) for box in boxes if owner_uid(box) == self.pool and not is_deleting(box)}
        if len(present) >= _REPLICAS or present - self._known:
            self._since = now
        self._known |= present
        if now - self._since > BOUND:
            details = f"{SANDBOX_WARM_POOL.kind} is short of {_REPLICAS - len(present)} for {BOUND:g} s and gets none"
            raise Violation("refill goes on", details)
