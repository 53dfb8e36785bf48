"""Measures how soon claims are served after a restart of the controller in a cluster full of sandboxes.

The controller stops on SIGTERM, as in an update of its Deployment, so it releases its lease. Claims are created when
its process has ended. The measurement begins with the start of the next process: Python, imports, the lists of all
sandboxes and pods, the lease, and then the claims.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.installation import CONTROLLER, Installation
from sandpool.api.kinds import SANDBOX
from sandpool.bench.load import Load, Outcome, Tell
from sandpool.bench.members import Members
from sandpool.bench.namespace_setup import POOL, Ground
from sandpool.bench.scenarios import Bursts
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client

_NAMESPACE: Final = "bench-restart"
# Timeouts in seconds: for the pool to be full, and for the claims to be served.
_TIMEOUT: Final = 900.0


@dataclass(frozen=True, slots=True)
class Restart:
    """``first`` and ``last`` are the seconds from the start of the process until the first and the last of the waiting
    claims were ready; infinite if none was. ``cpu`` and ``starved`` are those of the new process until then, ``memory``
    its resident bytes."""

    sandboxes: int
    filled: float
    ended: float
    first: float
    last: float
    outcome: Outcome
    warm: int
    cpu: float
    starved: float
    memory: int


async def restart(there: Installation, clock: Clock, tell: Tell, *, sandboxes: int, claims: int) -> Restart:
    """Fill a pool until the cluster has ``sandboxes`` sandboxes, and restart the controller while claims wait."""
    client = there.place.client
    ground = Ground(client, clock, _NAMESPACE, "", tell)
    members = Members(client, clock, _NAMESPACE, POOL)
    async with ground, members, Load(client, clock, _NAMESPACE, POOL, tell=tell) as load:
        size = max(sandboxes - await count(client), claims)
        tell(f"filling a pool of {size:,}, so that there are {sandboxes:,} sandboxes")
        begin = clock.monotonic()
        await ground.make_pool(size)
        await members.full(size, _TIMEOUT)
        filled = clock.monotonic() - begin
        present = await count(client)
        tell("ending the controller")
        begin = clock.monotonic()
        await asyncio.to_thread(there.controller.end)
        ended = clock.monotonic() - begin
        waiting = asyncio.create_task(load.run(Bursts(claims).waves(Random(0)), patience=_TIMEOUT))
        await _made(load, claims, clock)
        tell("starting it again")
        begin = clock.monotonic()
        there.controller.start()
        outcome = await waiting
        used = await there.place.usage()
        found = await ground.sandboxes({claim.sandbox for claim in outcome.claims})
    ready = [claim.ready - begin for claim in outcome.claims if claim.ready is not None]
    served = len(ready) == claims
    return Restart(
        present,
        filled,
        ended,
        min(ready, default=float("inf")),
        max(ready) if served else float("inf"),
        outcome,
        sum(ground.is_warm(sandbox) for sandbox in found.values()),
        used.cpu[CONTROLLER],
        used.starved[CONTROLLER],
        used.memory[CONTROLLER],
    )


async def count(client: Client) -> int:
    """Return the number of sandboxes in the cluster."""
    page = await client.list(SANDBOX, limit=1)
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


async def _made(load: Load, claims: int, clock: Clock) -> None:
    """Wait until the API has accepted all claims."""
    while sum(claim.answered is not None for claim in load.outcome.claims) + len(load.outcome.failed) < claims:
        await clock.sleep(0.01)
