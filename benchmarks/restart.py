"""Measures how soon claims are served after a restart of the controller in a cluster full of sandboxes.

The controller stops on SIGTERM, as in an update of its Deployment, so it releases its lease. Claims are created when
its process has ended. The measurement begins with the start of the next process: Python, imports, the lists of all
sandboxes and pods, the lease, and then the claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.installation import CONTROLLER, Installation
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import SharedObject
from sandpool.bench.load import Load, Outcome, Show, new_claim
from sandpool.bench.members import Members
from sandpool.bench.namespace_setup import POOL, Ground
from sandpool.bench.scenarios import Bursts
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ServiceUnavailable

_NAMESPACE: Final = "bench-restart"
# Timeouts in seconds: for the pool to be full, and for the claims to be served.
_TIMEOUT: Final = 900.0
_PAUSE: Final = 0.02


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


async def restart(there: Installation, clock: Clock, show: Show, *, sandboxes: int, claims: int) -> Restart:
    """Fill a pool until the cluster has ``sandboxes`` sandboxes, and restart the controller while claims wait."""
    client = there.place.client
    ground = Ground(client, clock, _NAMESPACE, "", show)
    members = Members(client, clock, _NAMESPACE, POOL)
    async with ground, members, Load(client, clock, _NAMESPACE, POOL, show=show) as load:
        size = max(sandboxes - await count(client), claims)
        show(f"filling a pool of {size:,}, so that there are {sandboxes:,} sandboxes")
        begin = clock.monotonic()
        await ground.make_pool(size)
        await members.full(size, _TIMEOUT)
        filled = clock.monotonic() - begin
        present = await count(client)
        show("ending the controller")
        begin = clock.monotonic()
        await asyncio.to_thread(there.controller.end)
        ended = clock.monotonic() - begin
        waiting = asyncio.create_task(load.run(Bursts(claims).waves(Random(0)), timeout=_TIMEOUT))
        await _made(load, claims, clock)
        show("starting it again")
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


async def first_claim(there: Installation, clock: Clock, show: Show, *, sandboxes: int) -> float:
    """Fill a pool until the cluster has ``sandboxes`` sandboxes, and restart the process. Returns the seconds from its
    start until a claim is ready that a client makes as soon as the API accepts it.

    Unlike ``restart``, this suits a storage that is away with its process."""
    client = there.place.client
    async with Ground(client, clock, f"{_NAMESPACE}-first", "", show) as ground:
        async with Members(client, clock, ground.namespace, POOL) as members:
            size = max(sandboxes - await count(client), 1)
            show(f"filling a pool of {size:,}, so that there are {sandboxes:,} sandboxes")
            await ground.make_pool(size)
            await members.full(size, _TIMEOUT)
        show("restarting the process")
        await asyncio.to_thread(there.controller.end)
        begin = clock.monotonic()
        there.controller.start()
        claim = new_claim("first", POOL)
        await insist(clock, lambda: client.create(SANDBOX_CLAIM, claim, ground.namespace))
        while not is_ready(await insist(clock, lambda: client.get(SANDBOX_CLAIM, "first", ground.namespace))):
            await clock.sleep(_PAUSE)
        return clock.monotonic() - begin


async def insist(clock: Clock, ask: Callable[[], Awaitable[SharedObject]]) -> SharedObject:
    """Repeat a request until the API answers it. Raises ``TimeoutError`` when it does not for minutes."""
    end = clock.monotonic() + _TIMEOUT
    while True:
        try:
            return await ask()
        except (ServiceUnavailable, OSError) as error:
            if clock.monotonic() > end:
                raise TimeoutError(f"the API does not answer: {error}") from error
        await clock.sleep(_PAUSE)


async def count(client: Client) -> int:
    """Return the number of sandboxes in the cluster."""
    page = await client.list(SANDBOX, limit=1)
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


async def _made(load: Load, claims: int, clock: Clock) -> None:
    """Wait until the API has accepted all claims."""
    while sum(claim.answered is not None for claim in load.outcome.claims) + len(load.outcome.failed) < claims:
        await clock.sleep(0.01)
