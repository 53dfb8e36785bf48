"""Expiry: when a claim ends, and which sandboxes end with it.

A claim expires at its shutdown time, or at the end of its time to live after its pod has finished, whichever is first.
The controller writes the expiry into the status before it deletes anything, in a reconcile of its own. Watchers of the
claim see the reason, and a clock that was wrong for a moment has deleted nothing before it is read a second time.

A pool has defaults for its claims: how long those live that set no end, and how long any waits for its first sandbox.
They are annotations of the pool and apply to claims as they are, without a write: in each reconcile a claim has the
lifecycle that follows from its pool. A changed or removed default therefore applies to existing claims too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple

from sandpool.api import labels
from sandpool.api.claim import DELETE, DELETE_FOREGROUND
from sandpool.api.conditions import CLAIM_EXPIRED, FINISHED, READY, TRUE, Condition, find_condition
from sandpool.api.times import parse_seconds
from sandpool.api.views import ClaimView, Lifecycle, SandboxView, WarmPoolView, parse_time
from sandpool.controllers.claim.errors import expired_but_not_owned

_log = logging.getLogger(__name__)

#: Between writing that a claim has expired and acting on it.
SECOND_RECONCILE_SECONDS: Final = 0.001

_ANNOTATIONS: Final = (labels.CLAIM_TTL, labels.CLAIM_TTL_AFTER_FINISHED, labels.CLAIM_UNBOUND_TTL)
#: Longer defaults would leave the range of dates.
_LONGEST: Final = 100 * 365 * 24 * 3600.0


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


# -- defaults of the pool ----------------------------------------------------------------------------------------------


class ClaimDefaults(NamedTuple):
    """Seconds; None: without end."""

    ttl: float | None
    ttl_after_finished: float | None
    unbound_ttl: float | None

    @classmethod
    def of(cls, pool: WarmPoolView) -> ClaimDefaults:
        given = pool.annotations
        if not any(name in given for name in _ANNOTATIONS):
            return NO_DEFAULTS
        return cls(*(_seconds(name, given.get(name)) for name in _ANNOTATIONS))


#: Of a pool without annotations: its claims stay as they are.
NO_DEFAULTS: Final = ClaimDefaults(None, None, None)


def with_defaults(claim: ClaimView, pool: WarmPoolView | None, *, had_sandbox: bool) -> ClaimView:
    """The claim with the lifecycle that it has in its pool. ``had_sandbox`` is set for a claim that has or had one: it
    is no longer waiting for its first."""
    if pool is None or claim.creation_timestamp is None:
        return claim
    defaults = ClaimDefaults.of(pool)
    if defaults == NO_DEFAULTS:
        return claim
    lifecycle = claim.lifecycle
    if not has_end(lifecycle) and (defaults.ttl is not None or defaults.ttl_after_finished is not None):
        end = None if defaults.ttl is None else claim.creation_timestamp + timedelta(seconds=defaults.ttl)
        finished = None if defaults.ttl_after_finished is None else int(defaults.ttl_after_finished)
        lifecycle = Lifecycle(end, finished, DELETE if lifecycle is None else lifecycle.shutdown_policy)
    if defaults.unbound_ttl is not None and not had_sandbox and not was_bound(claim):
        end = claim.creation_timestamp + timedelta(seconds=defaults.unbound_ttl)
        lifecycle = lifecycle or Lifecycle(None, None, DELETE)
        if lifecycle.shutdown_time is None or end < lifecycle.shutdown_time:
            lifecycle = replace(lifecycle, shutdown_time=end)
    return claim if lifecycle is claim.lifecycle else replace(claim, lifecycle=lifecycle)


def has_end(lifecycle: Lifecycle | None) -> bool:
    """Whether a claim says itself when it ends."""
    if lifecycle is None:
        return False
    return lifecycle.shutdown_time is not None or lifecycle.ttl_seconds_after_finished is not None


def was_bound(claim: ClaimView) -> bool:
    """Whether the claim itself says that it has or had a sandbox."""
    annotations = claim.annotations
    return bool(claim.sandbox_name or labels.SANDBOX_NAME in annotations or labels.CLAIM_FIRST_READY_AT in annotations)


@lru_cache(1024)
def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_seconds(text)
    if seconds is None or seconds > _LONGEST:
        _log.warning("annotation %s of a SandboxWarmPool has no effect: %r is no duration such as 30m", name, text)
        return None
    return seconds
