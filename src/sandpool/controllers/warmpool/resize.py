"""Which members to give up and how many to create, by the pool's strategy."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from sandpool.api.views import SandboxView, WarmPoolView
from sandpool.api.warmpool import ROLLING_UPDATE
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.warmpool.rollout import Bounds, step
from sandpool.controllers.warmpool.scaling import Supply, refill
from sandpool.controllers.warmpool.shrink import surplus


@dataclass(frozen=True, slots=True)
class Resize:
    supply: Supply
    delete: tuple[SandboxView, ...]
    create: int
    wait: float | None


def resize(
    pool: WarmPoolView,
    members: Sequence[SandboxView],
    *,
    outdated: Set[str],
    terminating: int,
    has_template: bool,
    settled: bool,
    supply: Supply,
    now: datetime,
    settings: WarmPoolOptions,
) -> Resize:
    """``members`` are those that are there to stay, ``outdated`` the UIDs among them that are of a former template."""
    population = len(members) + terminating
    old = [member for member in members if member.uid in outdated]
    if pool.strategy == ROLLING_UPDATE and old:
        current = [member for member in members if member.uid not in outdated]
        rollout = step(pool.replicas, Bounds.of(pool), old, current, limit=settings.max_batch_size)
        goners = rollout.delete
        missing = min(pool.replicas - len(current), rollout.ceiling - population)
    else:
        goners = tuple(surplus(members, min(len(members) - pool.replicas, settings.max_batch_size)))
        missing = pool.replicas - population
    refilled = refill(missing if has_template else 0, settled=settled, supply=supply, now=now, settings=settings)
    if not goners:
        return Resize(refilled.supply, (), refilled.create, refilled.wait)
    if not settled:
        return Resize(supply, (), 0, settings.expectations_recheck_interval)
    # Nobody claimed these, so their going is no reason to wait with the refill.
    hold = refilled.supply.hold.changed(-len(goners))
    return Resize(replace(refilled.supply, hold=hold), goners, refilled.create, refilled.wait)
