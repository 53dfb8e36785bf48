"""What a pool's status says."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final, NamedTuple

from sandpool.api import conditions
from sandpool.api.conditions import FALSE, TRUE, set_condition
from sandpool.api.events import go_duration
from sandpool.api.labels import WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.times import timestamp
from sandpool.api.views import WarmPoolStatus, WarmPoolView
from sandpool.controllers.warmpool.breaker import Breaker

_WIRE_NAMES: Final = {
    "replicas": "replicas",
    "ready_replicas": "readyReplicas",
    "updated_replicas": "updatedReplicas",
    "updated_ready_replicas": "updatedReadyReplicas",
    "selector": "selector",
    "observed_generation": "observedGeneration",
    "conditions": "conditions",
}
assert _WIRE_NAMES.keys() == {field.name for field in fields(WarmPoolStatus)}


@dataclass(frozen=True, slots=True)
class Census:
    """The members, counted."""

    members: int = 0
    ready: int = 0
    current: int = 0  # of the template as it is now
    current_ready: int = 0
    unschedulable: int = 0

    @property
    def outdated(self) -> int:
        return self.members - self.current


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else a pool's conditions tell about."""

    replaces: bool  # outdated members are replaced, not handed out until they are gone
    has_template: bool
    breaker: Breaker
    has_stalled: bool
    grace: float  # seconds a member has to become ready
    needed: int  # ready members without which the pool is not available


class _Finding(NamedTuple):
    status: str
    reason: str
    message: str


def status_of(pool: WarmPoolView, census: Census, circumstances: Circumstances, now: datetime) -> WarmPoolStatus:
    status = WarmPoolStatus(
        replicas=census.members,
        ready_replicas=census.ready,
        updated_replicas=census.current,
        updated_ready_replicas=census.current_ready,
        selector=f"{WARM_POOL}={name_hash(pool.name)}",
        observed_generation=pool.generation,
        conditions=pool.status.conditions,
    )
    for type, finding in (
        (conditions.PROGRESSING, _progressing(pool, census, circumstances)),
        (conditions.AVAILABLE, _available(pool, census, circumstances.needed)),
    ):
        known = set_condition(
            status.conditions,
            type,
            *finding,
            observed_generation=pool.generation,
            now=timestamp(now),
        )
        status = replace(status, conditions=known)
    return status


def status_patch(old: WarmPoolStatus, new: WarmPoolStatus) -> Object | None:
    """The merge patch that makes the one the other, None if there is nothing to do. What is zero is taken out, as the
    API has always shown a zero."""
    changes = {wire: getattr(new, name) or None for name, wire in _WIRE_NAMES.items() if _differs(name, old, new)}
    return {"status": changes} if changes else None


def _differs(name: str, old: WarmPoolStatus, new: WarmPoolStatus) -> bool:
    return bool(getattr(old, name) != getattr(new, name))


def _progressing(pool: WarmPoolView, census: Census, circumstances: Circumstances) -> _Finding:
    """The first that applies. False are those that do not pass by waiting."""
    grace = go_duration(circumstances.grace)
    breaker = circumstances.breaker
    if not circumstances.has_template:
        return _Finding(FALSE, conditions.TEMPLATE_NOT_FOUND, conditions.template_not_found_message(pool.template))
    if breaker.is_open and census.members < pool.replicas:
        message = (
            f"creating sandboxes failed {_times(breaker.failures)}, "
            f"pausing for {go_duration(breaker.pause)}: {breaker.error}"
        )
        return _Finding(FALSE, conditions.CREATION_FAILING, message)
    if census.unschedulable:
        share = f"{census.unschedulable}/{pool.replicas}"
        message = f"{share} sandboxes are unschedulable past the {grace} readiness grace period"
        return _Finding(FALSE, conditions.UNSCHEDULABLE, message)
    is_replacing = circumstances.replaces and census.outdated > 0
    if circumstances.has_stalled:
        message = f'sandboxes of template "{pool.template}" do not become ready within {grace}'
        if is_replacing:
            message += f"; the rollout is stopped and {_count(census.outdated)} of the former template kept"
        return _Finding(FALSE, conditions.PROGRESS_DEADLINE_EXCEEDED, message)
    if is_replacing:
        message = f"{census.current_ready} of {pool.replicas} sandboxes are ready and of the current template"
        return _Finding(TRUE, conditions.ROLLING_OUT, message)
    if census.ready < pool.replicas:
        return _Finding(TRUE, conditions.REPLENISHING, f"{census.ready} of {pool.replicas} sandboxes are ready")
    if census.outdated:
        message = f"{_count(census.outdated)} of the former template will be handed out before being replaced"
        return _Finding(TRUE, conditions.OUTDATED_IN_USE, message)
    return _Finding(TRUE, conditions.COMPLETE, "all sandboxes are ready and of the current template")


def _available(pool: WarmPoolView, census: Census, needed: int) -> _Finding:
    share = f"{needed} of {pool.replicas} sandboxes are ready"
    if census.ready >= needed:
        return _Finding(TRUE, conditions.ENOUGH_READY, f"at least {share}")
    return _Finding(FALSE, conditions.TOO_FEW_READY, f"fewer than {share}")


def _count(number: int) -> str:
    return "1 sandbox" if number == 1 else f"{number} sandboxes"


def _times(failures: int) -> str:
    return "once" if failures == 1 else f"{failures} times in a row"
