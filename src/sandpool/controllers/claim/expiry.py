"""When a claim ends, and what goes with it.

A claim expires at its shutdown time or some time after its pod has ended, whichever is first. That it has expired is
written down before anything is deleted, in a pass of its own: who watches the claim sees why its sandbox goes, and a
clock that was wrong for a moment has destroyed nothing until it is asked a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

from sandpool.api.claim import DELETE, DELETE_FOREGROUND
from sandpool.api.conditions import CLAIM_EXPIRED, FINISHED, READY, TRUE, Condition, find_condition
from sandpool.api.views import ClaimView, Lifecycle, SandboxView, parse_time
from sandpool.controllers.claim.errors import expired_but_not_owned

#: Between writing down that a claim has expired and acting on it.
SECOND_PASS_SECONDS: Final = 0.001


class Phase(Enum):
    ACTIVE = auto()
    MARK = auto()  # expired, and the claim does not say so yet
    DELETE = auto()  # the claim goes, and the garbage collector takes its sandbox
    DELETE_FOREGROUND = auto()  # the claim goes after its sandbox
    RETAIN = auto()  # the sandbox goes, the claim stays


def deadline(lifecycle: Lifecycle | None, conditions: list[Condition]) -> datetime | None:
    """When a claim with these conditions expires; None if it does not."""
    if lifecycle is None:
        return None
    moments = [lifecycle.shutdown_time, _end_of_ttl(lifecycle, conditions)]
    return min((moment for moment in moments if moment is not None), default=None)


def _end_of_ttl(lifecycle: Lifecycle, conditions: list[Condition]) -> datetime | None:
    ttl = lifecycle.ttl_seconds_after_finished
    finished = find_condition(conditions, FINISHED)
    if ttl is None or finished is None or finished["status"] != TRUE:
        return None
    ended = parse_time(finished.get("lastTransitionTime"))
    return None if ended is None else ended + timedelta(seconds=ttl)


def has_expired(lifecycle: Lifecycle | None, conditions: list[Condition], now: datetime) -> bool:
    at = deadline(lifecycle, conditions)
    return at is not None and now >= at


def phase(claim: ClaimView, now: datetime) -> Phase:
    if claim.lifecycle is None or not has_expired(claim.lifecycle, claim.conditions, now):
        return Phase.ACTIVE
    if not is_marked(claim.conditions):
        return Phase.MARK
    policies = {DELETE: Phase.DELETE, DELETE_FOREGROUND: Phase.DELETE_FOREGROUND}
    return policies.get(claim.lifecycle.shutdown_policy, Phase.RETAIN)


def is_marked(conditions: list[Condition]) -> bool:
    """Whether the claim says that it has expired."""
    ready = find_condition(conditions, READY)
    return ready is not None and ready["reason"] == CLAIM_EXPIRED[0]


def sandboxes_to_delete(
    claim: ClaimView, owned: Sequence[SandboxView], named: Mapping[str, SandboxView]
) -> tuple[SandboxView, ...]:
    """The sandboxes of a claim that stays although it has expired: all it owns, also one it never knew of because a
    controller stopped before it had written that down. Raises if what it should be is somebody else's."""
    if owned:
        return tuple(owned)
    name = claim.sandbox_name or claim.name
    if name in named:
        raise expired_but_not_owned(name, claim.name)
    return ()
