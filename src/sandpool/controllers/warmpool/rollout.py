"""RollingUpdate: replaces the members of a former template step by step.

Two bounds hold at every step, whatever claims do meanwhile:

* There are never more than ``replicas + maxSurge`` members, including terminating ones. The surge serves to create
  current members while outdated ones still exist, and nothing else.
* The rollout deletes a ready member only if at least ``replicas - maxUnavailable`` ready ones are left. It deletes an
  unready member only if at least that many are left that are ready, or that may become ready without the new template.
  A template that never becomes ready therefore stops the rollout: current members do not become ready, so no further
  outdated one may be deleted.

Unready outdated members are deleted first. They are of no use to claims and make room for current ones.
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
    """The numbers of members that a rollout may add and do without."""

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
            unavailable = 1  # otherwise nothing could ever be replaced
        return cls(surge, min(unavailable, pool.replicas))


def amount(value: int | str, total: int, *, round_up: bool) -> int:
    """A number of members, given as a number or as a percentage of all."""
    if isinstance(value, int):
        return max(0, value)
    percent = int(value.removesuffix("%"))
    return -(-total * percent // 100) if round_up else total * percent // 100


@dataclass(frozen=True, slots=True)
class Rollout:
    """The next step of a rollout."""

    delete: tuple[SandboxView, ...]
    ceiling: int  # highest number of members, including terminating ones


def step(
    desired: int, bounds: RolloutBounds, outdated: Iterable[SandboxView], current: Iterable[SandboxView], *, limit: int
) -> Rollout:
    """The next step. ``limit`` bounds the deletions of one step."""
    outdated = tuple(outdated)
    current = tuple(current)
    needed = desired - bounds.unavailable
    current_ready = sum(member.ready for member in current)
    # Unready members count on both sides. They might recover, so they are among the members kept for claims. And they
    # are deleted first, so a ready one is deleted only if enough ready ones are left.
    expendable = max(0, len(outdated) + current_ready - needed)
    removed = least_useful(outdated, min(expendable, limit))
    remaining = len(outdated) - len(removed)
    ceiling = desired + bounds.surge if remaining else desired
    gone = {member.uid for member in removed}
    kept = [member for member in (*outdated, *current) if member.uid not in gone]
    # Only after the pool was scaled down. Outdated members are deleted before current ones of the same readiness.
    excess = min(len(kept) - ceiling, limit - len(removed))
    uids = {member.uid for member in outdated}
    removed += least_useful(kept, excess, lambda member: member.uid in uids)
    return Rollout(tuple(removed), ceiling)
