"""RollingUpdate: replacing the members of a former template step by step.

Two bounds hold at every step, whatever claims do meanwhile:

* There are never more than ``replicas + maxSurge`` members, those on their way out included. The surge is for making
  current members while outdated ones are still there, and for nothing else.
* The rollout never takes a ready member away if fewer than ``replicas - maxUnavailable`` ready ones would be left, nor
  an unready one if fewer than that would be left that are ready or may become so without the new template. A template
  that never becomes ready therefore stops the rollout by itself: current members do not become ready, so no further
  outdated one may go.

Outdated members that are not ready go first. They are of no use to claims and make room for current ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sandpool.api.views import SandboxView, WarmPoolView
from sandpool.controllers.warmpool.scaling import least_useful

DEFAULT_MAX_UNAVAILABLE: Final = "25%"
DEFAULT_MAX_SURGE: Final = "25%"


@dataclass(frozen=True, slots=True)
class RolloutBounds:
    """How many members a rollout may add and do without."""

    surge: int
    unavailable: int

    @classmethod
    def of(cls, pool: WarmPoolView) -> RolloutBounds:
        surge = amount(DEFAULT_MAX_SURGE if pool.max_surge is None else pool.max_surge, pool.replicas, round_up=True)
        unavailable = amount(
            DEFAULT_MAX_UNAVAILABLE if pool.max_unavailable is None else pool.max_unavailable,
            pool.replicas,
            round_up=False,
        )
        if not surge and not unavailable:
            unavailable = 1  # else nothing could ever be replaced
        return cls(surge, min(unavailable, pool.replicas))


def amount(value: int | str, total: int, *, round_up: bool) -> int:
    """A number of members that is given as one, or as a percentage of all."""
    if isinstance(value, int):
        return max(0, value)
    percent = int(value.removesuffix("%"))
    return -(-total * percent // 100) if round_up else total * percent // 100


@dataclass(frozen=True, slots=True)
class Rollout:
    delete: tuple[SandboxView, ...]
    ceiling: int  # how many members there may be, those on their way out included


def step(
    desired: int, bounds: RolloutBounds, outdated: Iterable[SandboxView], current: Iterable[SandboxView], *, limit: int
) -> Rollout:
    """The next step. ``limit`` bounds how many members one step deletes."""
    outdated = tuple(outdated)
    current = tuple(current)
    needed = desired - bounds.unavailable
    current_ready = sum(member.ready for member in current)
    # Those that are not ready count on both sides: they might recover, so they are among what is kept for claims; and
    # they are the first to go, so a ready one goes only if enough ready ones are left.
    expendable = max(0, len(outdated) + current_ready - needed)
    removed = least_useful(outdated, min(expendable, limit))
    remaining = len(outdated) - len(removed)
    ceiling = desired + bounds.surge if remaining else desired
    gone = {member.uid for member in removed}
    kept = [member for member in (*outdated, *current) if member.uid not in gone]
    # Only after the pool was made smaller. Outdated ones are kept no longer than current ones that are as ready.
    excess = min(len(kept) - ceiling, limit - len(removed))
    uids = {member.uid for member in outdated}
    removed += least_useful(kept, excess, lambda member: member.uid in uids)
    return Rollout(tuple(removed), ceiling)
