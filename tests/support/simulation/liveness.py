"""Liveness: pools are refilled under a load of claims that never pauses.

Refill work yields to claims (``engine.background``). If it yielded without a bound, an endless load would keep a pool
empty for ever. Worlds that become quiescent cannot show that. So this story creates a claim whenever fewer than a few
claims are in progress, and checks that a pool below ``replicas`` keeps getting members.
"""

from __future__ import annotations

from random import Random
from typing import Final

from sandpool.api.kinds import SANDBOX, SANDBOX_WARM_POOL
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.network_faults import NetworkFaults
from sandpool.testing.simulation.object_facts import is_deleting, owner_uid, uid_of
from sandpool.testing.simulation.simulation import Scenario
from sandpool.testing.simulation.world import World

#: Seconds within which a pool below ``replicas`` gets a member: the gate's limit, a few requests, and a margin.
BOUND: Final = 4.0
# Seconds of continuous load.
_DURATION: Final = 12.0
# Claims kept in progress, and seconds between two checks of their number.
_CONCURRENT_CLAIMS: Final = 3
_INTERVAL: Final = 0.02
_REPLICAS: Final = 4


def steady_load(seed: int) -> Scenario:
    """The scenario, on a slow network: on a fast one, thousands of claims would be needed to keep the load up."""
    return Scenario(story=claims_without_a_pause, faults=NetworkFaults(Random(seed), lag=0.15))


async def claims_without_a_pause(world: World) -> None:
    """Claim continuously for a while. Raises ``Violation`` if the pool is not refilled."""
    clock = world.clock
    await world.template()
    pool = uid_of(await world.pool(replicas=_REPLICAS))
    await world.filled()
    watched = RefillCheck(world, pool)
    end = clock.monotonic() + _DURATION
    claims = 0
    while clock.monotonic() < end:
        if _claims_in_progress(world) < _CONCURRENT_CLAIMS:
            claims += 1
            await world.claim(f"c{claims}")
        await clock.sleep(_INTERVAL)
        watched.check()
    if watched.members <= _REPLICAS:
        raise Violation("refill makes progress", f"{claims} claims were created and no pool member was replaced")


def _claims_in_progress(world: World) -> int:
    """The number of claims in the work queue or being reconciled."""
    queue = world.simulation.processes[-1].controllers.claims.controller.queue
    return len(queue) + queue.processing


class RefillCheck:
    """Tracks the current and former members of a pool."""

    def __init__(self, world: World, pool: str) -> None:
        self.world = world
        self.pool = pool
        self._known: set[str] = set()
        self._since = world.clock.monotonic()  # when the pool was last full or got a member

    @property
    def members(self) -> int:
        """The number of members seen so far."""
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
            details = f"{SANDBOX_WARM_POOL.kind} lacks {_REPLICAS - len(present)} members and got none for {BOUND:g} s"
            raise Violation("refill makes progress", details)
