"""Expiry: when a claim ends, and which sandboxes end with it.

A claim expires at its shutdown time, or at the end of its time to live after its pod has finished, whichever is first.
The controller writes the expiry into the status before it deletes anything, in a reconcile of its own. Watchers of the
claim see the reason, and a clock that was wrong for a moment has deleted nothing before it is read a second time.
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

#: Between writing that a claim has expired and acting on it.
SECOND_RECONCILE_SECONDS: Final = 0.001


class Phase(Enum):
    ACTIVE = auto()
    MARK = auto()  # expired, and the status does not say so yet
    DELETE = auto()  # delete the claim; the garbage collector deletes its sandbox
    DELETE_FOREGROUND = auto()  # delete the claim after its sandbox
    RETAIN = auto()  # delete the sandbox and keep the claim


def deadline(lifecycle: Lifecycle | None, conditions: Sequence[Condition]) -> datetime | None:
    """The time at which a claim with these conditions expires; None: never."""
    if lifecycle is None:
        return None
    moments = [lifecycle.shutdown_time, _end_of_ttl(lifecycle, conditions)]
    return min((moment for moment in moments if moment is not None), default=None)


def _end_of_ttl(lifecycle: Lifecycle, conditions: Sequence[Condition]) -> datetime | None:
    ttl = lifecycle.ttl_seconds_after_finished
    finished = find_condition(conditions, FINISHED)
    if ttl is None or finished is None or finished["status"] != TRUE:
        return None
    ended = parse_time(finished.get("lastTransitionTime"))
    return None if ended is None else ended + timedelta(seconds=ttl)


def has_expired(lifecycle: Lifecycle | None, conditions: Sequence[Condition], now: datetime) -> bool:
    at = deadline(lifecycle, conditions)
    return at is not None and now >= at


def phase(claim: ClaimView, now: datetime) -> Phase:
    if claim.lifecycle is None or not has_expired(claim.lifecycle, claim.conditions, now):
        return Phase.ACTIVE
    if not is_marked(claim.conditions):
        return Phase.MARK
    policies = {DELETE: Phase.DELETE, DELETE_FOREGROUND: Phase.DELETE_FOREGROUND}
    return policies.get(claim.lifecycle.shutdown_policy, Phase.RETAIN)


def is_marked(conditions: Sequence[Condition]) -> bool:
    """Whether the status says that the claim has expired."""
    ready = find_condition(conditions, READY)
    return ready is not None and ready["reason"] == CLAIM_EXPIRED[0]


def sandboxes_to_delete(
    claim: ClaimView, owned: Sequence[SandboxView], named: Mapping[str, SandboxView]
) -> tuple[SandboxView, ...]:
    """The sandboxes of a retained claim that has expired.

    All that the claim owns, including one that its status never named because a controller stopped too early. Raises if
    the sandbox that the claim names has another owner.
    """
    if owned:
        return tuple(owned)
    name = claim.sandbox_name or claim.name
    if name in named:
        raise expired_but_not_owned(name, claim.name)
    return ()
