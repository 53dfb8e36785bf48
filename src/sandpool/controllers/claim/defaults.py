"""Defaults that a pool has for its claims: how long those live that do not say it, how long any waits, and when the
sandboxes of those fall asleep that do not say it.

They are annotations of the pool and apply to claims as they are, without a write to the claim: in each reconcile a
claim has the lifecycle, and the annotations for its pod, that follow from its pool. A changed or removed default
therefore applies to existing claims too.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from sandpool.api import labels
from sandpool.api.claim import DELETE
from sandpool.api.times import parse_seconds
from sandpool.api.views import ClaimView, Lifecycle, TemplateView, WarmPoolView

_log = logging.getLogger(__name__)

_ANNOTATIONS: Final = (labels.CLAIM_TTL, labels.CLAIM_TTL_AFTER_FINISHED, labels.CLAIM_UNBOUND_TTL)
#: A pool has them for the pods of its claims. What the template or the claim says is stronger.
_IDLE: Final = (labels.IDLE_FREEZE_AFTER, labels.IDLE_SUSPEND_AFTER, labels.IDLE_CPU)
#: Longer ones would leave the range of dates.
_LONGEST: Final = 100 * 365 * 24 * 3600.0


class ClaimDefaults(NamedTuple):
    """Seconds; None: without end. ``idle`` are annotations of pods."""

    ttl: float | None
    ttl_after_finished: float | None
    unbound_ttl: float | None
    idle: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, pool: WarmPoolView) -> ClaimDefaults:
        given = pool.annotations
        if not any(name in given for name in (*_ANNOTATIONS, *_IDLE)):
            return NO_DEFAULTS
        idle = tuple((name, given[name]) for name in _IDLE if name in given)
        ttl, after_finished, unbound = (_seconds(name, given.get(name)) for name in _ANNOTATIONS)
        return cls(ttl, after_finished, unbound, idle)


#: Of a pool without annotations: its claims stay as they are.
NO_DEFAULTS: Final = ClaimDefaults(None, None, None)


def with_defaults(
    claim: ClaimView, pool: WarmPoolView | None, template: TemplateView | None, *, had_sandbox: bool
) -> ClaimView:
    """The claim with the lifecycle and the annotations of its pod that it has in its pool. ``template`` is that of its
    sandbox. ``had_sandbox`` is set for a claim that has or had one: it is no longer waiting for its first."""
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
    if idle := _unstated(claim, template, defaults.idle):
        claim = replace(claim, additional_annotations={**idle, **claim.additional_annotations})
    return claim if lifecycle is claim.lifecycle else replace(claim, lifecycle=lifecycle)


def _unstated(claim: ClaimView, template: TemplateView | None, idle: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The defaults about which neither the claim nor the template says anything."""
    if not idle or template is None:
        return {}
    of_template = (template.pod_template.get("metadata") or {}).get("annotations") or {}
    stated = {**of_template, **claim.additional_annotations}
    return {name: value for name, value in idle if name not in stated}


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
